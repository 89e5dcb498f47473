#include "io/text/bpe_model.h"

#include <array>

#include "io/files/utf8.h"

namespace tg::text {
namespace {

constexpr char32_t first_other = 0x100;

consteval bool is_its_own_letter(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

struct ByteLetters {
  std::array<char32_t, 256> letters{};
  std::array<int, first_other + 68> bytes{};  // by letter; −1 for a character outside the alphabet
};

consteval ByteLetters all_letters() {
  ByteLetters made;
  made.bytes.fill(-1);
  char32_t other = first_other;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t letter = is_its_own_letter(byte) ? static_cast<char32_t>(byte) : other++;
    made.letters[static_cast<std::size_t>(byte)] = letter;
    made.bytes[letter] = byte;
  }
  return made;
}

constexpr ByteLetters byte_letters = all_letters();

}  // namespace

std::string to_byte_letters(std::string_view bytes) {
  std::string out;
  out.reserve(2 * bytes.size());
  for (const char c : bytes) io::utf8_append(out, byte_letters.letters[static_cast<unsigned char>(c)]);
  return out;
}

std::optional<std::string> from_byte_letters(std::string_view letters) {
  std::string out;
  for (std::size_t i = 0; i < letters.size();) {
    char32_t c = 0;
    const std::size_t length = io::utf8_decode(letters, i, c);
    if (length == 0 || c >= byte_letters.bytes.size() || byte_letters.bytes[c] < 0) return std::nullopt;
    out += static_cast<char>(byte_letters.bytes[c]);
    i += length;
  }
  return out;
}

}  // namespace tg::text
