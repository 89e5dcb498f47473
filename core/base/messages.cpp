#include "core/base/messages.h"

#include <tilegrad/core/base/error.h>

namespace tg {
namespace {

constexpr std::size_t most_message_bytes = 4096;

// U+0080 to U+009F are control characters too; in UTF-8 they are c2 80 to c2 9f.
bool is_control(std::string_view text, std::size_t i) {
  const auto c = static_cast<unsigned char>(text[i]);
  return c < 0x20 || c == 0x7f || (i > 0 && text[i - 1] == '\xc2' && c >= 0x80 && c <= 0x9f);
}

bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string s;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!is_control(text, i)) {
      s += text[i];
    } else if (text[i] == '\n') {
      s += "\\n";
    } else {
      s += formatted("\\x%02x", static_cast<unsigned char>(text[i]));
    }
  }
  return s;
}

bool has_control_characters(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i)
    if (is_control(text, i)) return true;
  return false;
}

std::string middle_left_out(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  std::size_t first = most * 3 / 4, last = text.size() - most / 4;
  while (first > 0 && continues_character(text[first])) --first;
  while (last < text.size() && continues_character(text[last])) ++last;
  return std::string(text.substr(0, first)) + " … " + std::string(text.substr(last));
}

void check_name(std::string_view who, std::string_view name) {
  if (has_control_characters(name))
    throw Error("[" + std::string(who) + "] the name '" + middle_left_out(name, 200) +
                "' has control characters: expected a name of one line");
}

// Makes a message one line of limited length, even if it quotes a file or a name.
Error::Error(const std::string& message)
    : std::runtime_error(printable(middle_left_out(message, most_message_bytes))) {}
Error::Error(const char* message) : Error(std::string(message)) {}

}  // namespace tg
