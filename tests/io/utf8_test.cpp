// Compares the UTF-8 functions with the table of well-formed byte sequences in RFC 3629, section 4.
#include "io/files/utf8.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/support/files.h"

namespace {

using namespace tg;

struct Range {
  int low, high;
};
// The byte ranges of each form.
const std::vector<std::vector<Range>> forms = {{{0x00, 0x7f}},
                                               {{0xc2, 0xdf}, {0x80, 0xbf}},
                                               {{0xe0, 0xe0}, {0xa0, 0xbf}, {0x80, 0xbf}},
                                               {{0xe1, 0xec}, {0x80, 0xbf}, {0x80, 0xbf}},
                                               {{0xed, 0xed}, {0x80, 0x9f}, {0x80, 0xbf}},
                                               {{0xee, 0xef}, {0x80, 0xbf}, {0x80, 0xbf}},
                                               {{0xf0, 0xf0}, {0x90, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}},
                                               {{0xf1, 0xf3}, {0x80, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}},
                                               {{0xf4, 0xf4}, {0x80, 0x8f}, {0x80, 0xbf}, {0x80, 0xbf}}};

// Returns the number of leading bytes that fit the form.
std::size_t fitting(const std::vector<Range>& form, std::string_view s) {
  std::size_t n = 0;
  while (n < std::min(s.size(), form.size()) && static_cast<unsigned char>(s[n]) >= form[n].low &&
         static_cast<unsigned char>(s[n]) <= form[n].high)
    ++n;
  return n;
}
std::size_t length_of_first(std::string_view s) {
  for (const auto& form : forms)
    if (fitting(form, s) == form.size()) return form.size();
  return 0;
}
bool is_begun(std::string_view s) {  // whether s is the beginning of a character
  for (const auto& form : forms)
    if (s.size() < form.size() && fitting(form, s) == s.size()) return true;
  return false;
}
char32_t code_point(std::string_view s) {  // number of bytes of a well-formed character
  constexpr std::array<int, 4> lead_bits = {0x7f, 0x1f, 0x0f, 0x07};
  auto c = static_cast<char32_t>(static_cast<unsigned char>(s[0]) & lead_bits[s.size() - 1]);
  for (const char byte : s.substr(1))
    c = c * 64 + static_cast<char32_t>(static_cast<unsigned char>(byte) - 0x80);
  return c;
}

TEST(Utf8, OnlySequencesOfTheTableAreDecoded) {
  const unsigned char others[] = {0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0};
  for (int lead = 0; lead < 256; ++lead)
    for (const unsigned char second : others)
      for (const unsigned char third : others)
        for (const unsigned char fourth : others) {
          const char bytes[] = {'x', static_cast<char>(lead), static_cast<char>(second),
                                static_cast<char>(third), static_cast<char>(fourth)};
          for (std::size_t size = lead < 0x80 || fourth != 0x80 ? 4 : 1; size <= 4; ++size) {
            const std::string_view s(bytes, 1 + size), rest = s.substr(1);
            const std::size_t length = length_of_first(rest);
            char32_t c = 0;
            ASSERT_EQ(io::utf8_decode(s, 1, c), length)
                << lead << " " << int{second} << " " << int{third} << " " << size;
            if (length > 0) {
              ASSERT_EQ(c, code_point(rest.substr(0, length)));
              std::string again;
              io::utf8_append(again, c);
              ASSERT_EQ(again, rest.substr(0, length));
            }
          }
        }
}

TEST(Utf8, EveryCodePointIsEncodedInTheShortestForm) {
  for (char32_t c = 0; c <= 0x10ffff; c += c < 0x11000 || c >= 0x10fff0 ? 1 : 7) {
    if (c >= 0xd800 && c <= 0xdfff) continue;
    std::string s;
    io::utf8_append(s, c);
    ASSERT_EQ(s.size(), c < 0x80 ? 1u : c < 0x800 ? 2u : c < 0x10000 ? 3u : 4u) << std::uint32_t{c};
    std::size_t i = 0;
    ASSERT_EQ(io::utf8_next(s, i), c);
    ASSERT_EQ(i, s.size());
  }
}

// The strings contain complete characters, incomplete characters and other bytes, in every order.
TEST(Utf8, ValidAndIncompleteBytesAreCounted) {
  const std::string parts[] = {"",     "a",        "é",        "€",       "😀",    "\xc3",
                               "\xe2", "\xe2\x82", "\xf0\x9f", "\xf4",    "\xed", "\xf0\x9f\x98",
                               "\x80", "\xc0",     "\xff",     "\xed\xa0"};
  for (const std::string& a : parts)
    for (const std::string& b : parts)
      for (const std::string& c : parts) {
        const std::string s = a + b + c;
        std::size_t valid = 0, incomplete = 0;
        for (std::size_t n; valid < s.size() && (n = length_of_first(std::string_view(s).substr(valid))) > 0;)
          valid += n;
        for (std::size_t n = 1; n <= std::min<std::size_t>(s.size(), 3) && incomplete == 0; ++n)
          if (is_begun(std::string_view(s).substr(s.size() - n))) incomplete = n;
        EXPECT_EQ(io::utf8_valid_bytes(s), valid) << s;
        EXPECT_EQ(io::utf8_incomplete_bytes(s), incomplete) << s;
        for (std::size_t most = 0; most <= s.size() + 1; ++most) {
          std::size_t kept = 0;
          for (std::size_t n;
               kept < most && (n = length_of_first(std::string_view(s).substr(kept, most - kept))) > 0;)
            kept += n;
          EXPECT_EQ(io::utf8_shortened(s, most), s.size() <= most ? s : s.substr(0, kept) + "…")
              << s << ", " << most;
        }
      }
}

TEST(Utf8, NextStopsAtTheEndAndAtIllFormedBytes) {
  const std::string s = "é\xff";
  std::size_t i = 0;
  EXPECT_EQ(io::utf8_next(s, i), U'é');
  EXPECT_EQ(i, 2u);
  const auto error = [&](std::size_t at) { return tg::testing::error_of([&] { io::utf8_next(s, at); }); };
  for (const std::size_t at : {1, 2, 3, 4})
    EXPECT_EQ(error(at), "[utf8] no well-formed character at byte " + std::to_string(at));
}

}  // namespace
