// Splits text into words by bytes. words_unicode.cpp has the rules for characters.
#include <tilegrad/io/text/words.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace tg::text {
namespace {

enum class ByteClass : std::uint8_t { other, letter, digit, space };

constexpr std::array<ByteClass, 256> byte_classes = [] {
  std::array<ByteClass, 256> table{};
  for (int c = 0; c < 256; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 0x80;
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    table[static_cast<std::size_t>(c)] = letter                 ? ByteClass::letter
                                         : c >= '0' && c <= '9' ? ByteClass::digit
                                         : space                ? ByteClass::space
                                                                : ByteClass::other;
  }
  return table;
}();

ByteClass class_of(char c) {
  return byte_classes[static_cast<unsigned char>(c)];
}

// `rest` begins with '. Returns the length of a contraction such as 's or 'll at its start, or 0.
std::size_t contraction(std::string_view rest) {
  const std::string_view two = rest.substr(1, 2);
  if (two == "re" || two == "ve" || two == "ll") return 3;
  return !two.empty() && std::string_view("stmd").find(two[0]) != std::string_view::npos ? 2 : 0;
}

}  // namespace

std::size_t word_end(std::string_view text, std::size_t i) {
  const std::size_t limit = std::min(text.size(), i + max_word_bytes);
  if (text[i] == '\'')
    if (const std::size_t length = contraction(text.substr(i)); length > 0) return i + length;
  std::size_t end = i;
  if (text[i] == ' ' && i + 1 < limit && class_of(text[i + 1]) != ByteClass::space) ++end;
  const ByteClass kind = class_of(text[end]);
  while (++end < limit && class_of(text[end]) == kind) {
  }
  const bool more = end < text.size() && class_of(text[end]) != ByteClass::space;
  if (kind == ByteClass::space && more && end - i > 1 && text[end - 1] == ' ') --end;
  return end;
}

}  // namespace tg::text
