// Compares SHA-256 and HMAC-SHA-256 with published test vectors.
#include "parallel/sha256.h"

#include <gtest/gtest.h>

#include <string>

namespace tg {
namespace {

using parallel::Digest;

std::string hex(const Digest& d) {
  std::string text;
  for (const std::uint8_t byte : d) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::string hash_of(std::string_view text) {
  const std::array<std::string_view, 1> pieces{text};
  return hex(parallel::sha256(pieces));
}

std::string mac_of(std::string_view key, std::string_view text) {
  const std::array<std::string_view, 1> pieces{text};
  return hex(parallel::hmac_sha256(key, pieces));
}

// The vectors are from RFC 6234, section 8.5, and the example values of FIPS 180-4.
TEST(Sha256, MatchesPublishedDigests) {
  EXPECT_EQ(hash_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash_of(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  std::string eights;
  for (int i = 0; i < 80; ++i) eights += "01234567";
  EXPECT_EQ(hash_of(eights), "594847328451bdfa85056225462cc1d867d877fb388df0ce35f25ab5562bfbb5");
}

TEST(Sha256, PiecesAreHashedAsOneMessage) {
  const std::string text(200, 'x');
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const std::array<std::string_view, 2> pieces{std::string_view(text).substr(0, cut),
                                                 std::string_view(text).substr(cut)};
    EXPECT_EQ(hex(parallel::sha256(pieces)), hash_of(text));
    EXPECT_EQ(hex(parallel::hmac_sha256("key", pieces)), mac_of("key", text));
  }
}

// The vectors are from RFC 4231.
TEST(HmacSha256, MatchesPublishedDigests) {
  EXPECT_EQ(mac_of(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(mac_of("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(mac_of(std::string(20, '\xaa'), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(mac_of(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

// Covers all message lengths up to several blocks, and all key lengths. The expected values are digests of
// all digests, computed with Python's hashlib and hmac.
TEST(Sha256, AllLengthsMatchHashlib) {
  std::string data;
  for (int i = 0; i < 400; ++i) data += static_cast<char>((i * i + i / 7) % 256);
  const auto bytes = [](const Digest& d) {
    return std::string(reinterpret_cast<const char*>(d.data()), d.size());
  };
  std::string digests, macs;
  for (std::size_t n = 0; n < 300; ++n) {
    const std::array<std::string_view, 1> message{std::string_view(data).substr(0, n)};
    digests += bytes(parallel::sha256(message));
  }
  EXPECT_EQ(hash_of(digests), "f0983d22e7020f27b0e75bc44af6dbda1b49090a3a56c246577cef15dfbb82d5");
  for (std::size_t n = 0; n < 200; ++n) {
    const std::array<std::string_view, 1> message{std::string_view(data).substr(0, 200 - n)};
    macs += bytes(parallel::hmac_sha256(std::string_view(data).substr(n, n), message));
  }
  EXPECT_EQ(hash_of(macs), "5be6e74bfa3b735a2747602b4419b3af4e1ce1cec328b34c374b529c1d3e76e1");
}

TEST(HmacSha256, DigestsAreEqualIfAllBytesAre) {
  Digest a{};
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<std::uint8_t>(37 * i + 5);
  EXPECT_TRUE(parallel::are_equal(a, Digest(a)));
  for (std::size_t i = 0; i < a.size(); ++i) {
    Digest b = a;
    b[i] ^= 0x80;
    EXPECT_FALSE(parallel::are_equal(a, b));
  }
}

}  // namespace
}  // namespace tg
