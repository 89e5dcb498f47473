// Messages to the user. Some functions fit strings and names onto one line. Others rethrow an exception with
// a longer message.
#pragma once

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include <tilegrad/core/base/error.h>

namespace tg {

// Escapes control characters, for example as "\n" or "\x1b". A message then stays on one line and cannot
// control the terminal.
std::string printable(std::string_view text);

// Formats like std::snprintf. The result has at most 199 bytes.
std::string formatted(const char* format, auto... values) {
  char text[200];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

// Whether a string has control characters, such as NUL or a line break.
bool has_control_characters(std::string_view text);

// Throws Error, "[who] …", for a name with control characters, because names appear in messages, reports and
// files.
void check_name(std::string_view who, std::string_view name);

// Returns the string. If it is longer than `most` bytes, replaces its middle by "…".
std::string middle_left_out(std::string_view text, std::size_t most);

// Joins the items as strings, with `between` as separator: "a, b".
template <class Items, class Text = std::identity>
std::string list_text(const Items& items, std::string_view between, Text text_of = {}) {
  std::string all;
  for (bool is_first = true; const auto& item : items) {
    if (!std::exchange(is_first, false)) all += between;
    all += std::invoke(text_of, item);
  }
  return all;
}

// Returns the result of f. If f throws an Error that is not a FormatError, for example because a product of
// sizes overflows, throws a FormatError instead. Its message begins with `where`.
template <class F>
auto with_format_errors(const std::string& where, F f) {
  try {
    return f();
  } catch (const FormatError&) {
    throw;
  } catch (const Error& e) {
    throw FormatError(where + ": " + e.what());
  }
}

// For a catch block: throws an exception of the same type with the message message(what). If the exception is
// not from the library, throws an Error with the original nested in it (std::rethrow_if_nested).
template <class F>
[[noreturn]] void rethrow_with(F message) {
  try {
    throw;
  } catch (const ShapeError& e) {
    throw ShapeError(message(e.what()));
  } catch (const DTypeError& e) {
    throw DTypeError(message(e.what()));
  } catch (const DeviceError& e) {
    throw DeviceError(message(e.what()));
  } catch (const OutOfMemory& e) {
    throw OutOfMemory(message(e.what()));
  } catch (const FormatError& e) {
    throw FormatError(message(e.what()));
  } catch (const GradientError& e) {
    throw GradientError(message(e.what()));
  } catch (const Error& e) {
    throw Error(message(e.what()));
  } catch (const std::exception& e) {
    std::throw_with_nested(Error(message(e.what())));
  } catch (...) {
    std::throw_with_nested(Error(message("an exception that is not a std::exception")));
  }
}

}  // namespace tg
