#include "parallel/sha256.h"

#include <algorithm>
#include <bit>

namespace tg::parallel {

namespace {

using Block = std::array<std::uint8_t, 64>;

// The first 32 bits of the fractions of the cube roots of the first 64 primes. [FIPS 180-4, 4.2.2]
constexpr std::array<std::uint32_t, 64> constants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

class Sha256 {
 public:
  void add(std::string_view bytes) {
    for (const char c : bytes) {
      block_[filled_++] = static_cast<std::uint8_t>(c);
      if (filled_ == block_.size()) take_block();
    }
    bits_ += 8 * static_cast<std::uint64_t>(bytes.size());
  }

  Digest digest() {
    block_[filled_++] = 0x80;
    if (filled_ > 56) {
      std::fill(block_.begin() + static_cast<std::ptrdiff_t>(filled_), block_.end(), std::uint8_t{0});
      take_block();
    }
    std::fill(block_.begin() + static_cast<std::ptrdiff_t>(filled_), block_.end(), std::uint8_t{0});
    for (std::size_t i = 0; i < 8; ++i) block_[63 - i] = static_cast<std::uint8_t>(bits_ >> 8 * i);
    take_block();
    Digest d;
    for (std::size_t i = 0; i < d.size(); ++i)
      d[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    return d;
  }

 private:
  void take_block() {  // [FIPS 180-4, 6.2.2]
    std::array<std::uint32_t, 64> w;
    for (std::size_t t = 0; t < 64; ++t) {
      if (t < 16) {
        w[t] = std::uint32_t{block_[4 * t]} << 24 | std::uint32_t{block_[4 * t + 1]} << 16 |
               std::uint32_t{block_[4 * t + 2]} << 8 | std::uint32_t{block_[4 * t + 3]};
        continue;
      }
      const std::uint32_t a = w[t - 15], b = w[t - 2];
      w[t] = w[t - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[t - 7] +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (std::size_t t = 0; t < 64; ++t) {
      const std::uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                               ((e & f) ^ (~e & g)) + constants[t] + w[t];
      const std::uint32_t t2 =
          (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const std::array<std::uint32_t, 8> added{a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < added.size(); ++i) state_[i] += added[i];
    filled_ = 0;
  }

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  Block block_{};
  std::size_t filled_ = 0;
  std::uint64_t bits_ = 0;
};

std::string_view text(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Digest sha256(std::span<const std::string_view> pieces) {
  Sha256 hash;
  for (const std::string_view p : pieces) hash.add(p);
  return hash.digest();
}

Digest hmac_sha256(std::string_view key, std::span<const std::string_view> pieces) {
  Block padded{};
  const std::array<std::string_view, 1> long_key{key};
  const Digest hashed = sha256(long_key);
  if (key.size() > padded.size()) key = text(hashed);
  std::copy(key.begin(), key.end(), padded.begin());
  const auto keyed = [&](std::uint8_t pad, std::span<const std::string_view> message) {
    Block b = padded;
    for (std::uint8_t& x : b) x ^= pad;
    Sha256 hash;
    hash.add(text(b));
    for (const std::string_view p : message) hash.add(p);
    return hash.digest();
  };
  const Digest inner = keyed(0x36, pieces);
  const std::array<std::string_view, 1> again{text(inner)};
  return keyed(0x5c, again);
}

bool are_equal(const Digest& a, const Digest& b) {
  unsigned differing = 0;
  for (std::size_t i = 0; i < a.size(); ++i) differing |= a[i] ^ b[i];
  return differing == 0;
}

}  // namespace tg::parallel
