// Text for one line of a message or a terminal, and names that fit in one.
#pragma once

#include <string>
#include <string_view>

namespace tg {

// The text with control characters as escapes, "\n" or "\x1b": a message stays one line and cannot command
// the terminal.
std::string printable(std::string_view text);

// Whether a string has control characters, such as NUL or a line break.
bool has_control_characters(std::string_view text);

// Throws Error, "[who] …", for a name with control characters. Names are parts of messages, reports and
// files.
void check_name(std::string_view who, std::string_view name);

// The text, or if it is longer than `most` bytes, its first and last characters with "…" between them.
std::string middle_left_out(std::string_view text, std::size_t most);

}  // namespace tg
