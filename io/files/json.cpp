// The strict JSON reader, and functions that write strings and numbers.
#include <tilegrad/io/files/json.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include <tilegrad/core/base/error.h>
#include "io/files/utf8.h"

namespace tg::io {

JsonReader::JsonReader(std::string_view text, std::string where) : text_(text), where_(std::move(where)) {
  at_ = utf8_valid_bytes(text_);
  if (at_ != text_.size()) fail("not UTF-8");
  at_ = 0;
}

void JsonReader::fail(const std::string& what) const {
  throw FormatError(where_ + ": " + what + " at byte " + std::to_string(at_));
}

void JsonReader::space() {
  while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
}

JsonReader::Kind JsonReader::peek() {
  space();
  if (at_ == text_.size()) fail("JSON ends, expected a value");
  const char c = text_[at_];
  if (c == '-' || (c >= '0' && c <= '9')) return Kind::number;
  constexpr Kind kinds[] = {Kind::object,  Kind::array,   Kind::string,
                            Kind::logical, Kind::logical, Kind::null};
  const std::size_t which = std::string_view("{[\"tfn").find(c);
  if (which == std::string_view::npos) fail("no JSON value");
  return kinds[which];
}

void JsonReader::open(bool object) {
  if (peek() != (object ? Kind::object : Kind::array))
    fail(object ? "expected an object" : "expected an array");
  if (levels_.size() == max_depth) fail("nested more than " + std::to_string(max_depth) + " levels deep");
  levels_.push_back({object});
  ++at_;
}

void JsonReader::begin_object() {
  open(true);
}
void JsonReader::begin_array() {
  open(false);
}

// Skips the comma before the next member or item. Returns false if the container ends here.
bool JsonReader::next(bool object) {
  if (levels_.empty() || levels_.back().object != object) fail("no such container is open");
  space();
  if (at_ == text_.size()) fail(object ? "object is not closed" : "array is not closed");
  const bool first = std::exchange(levels_.back().first, false);
  if (text_[at_] == (object ? '}' : ']')) {
    levels_.pop_back();
    ++at_;
    return false;
  }
  if (first) return true;
  if (text_[at_] != ',') fail(object ? "expected ',' or '}'" : "expected ',' or ']'");
  ++at_;
  return true;
}

bool JsonReader::next_item() {
  return next(false);
}

std::optional<std::string> JsonReader::next_key() {
  if (!next(true)) return std::nullopt;
  if (peek() != Kind::string) fail("expected a key in quotes");
  std::string key = string();
  if (!levels_.back().keys.insert(key).second) fail("duplicate key " + json_excerpt(key));
  space();
  if (at_ == text_.size() || text_[at_] != ':') fail("expected ':' after a key");
  ++at_;
  return key;
}

void JsonReader::object(std::initializer_list<std::pair<std::string_view, std::function<void()>>> members,
                        const std::function<void(const std::string& key)>& other) {
  begin_object();
  while (const auto key = next_key()) {
    const auto known = std::ranges::find_if(members, [&](const auto& m) { return m.first == *key; });
    if (known != members.end())
      known->second();
    else if (other)
      other(*key);
    else
      skip();
  }
}

unsigned JsonReader::hex4() {
  unsigned value = 0;
  const char* from = text_.data() + at_;
  if (text_.size() - at_ < 4 || std::from_chars(from, from + 4, value, 16).ptr != from + 4) {
    fail("expected four hexadecimal digits after \\u");
  }
  at_ += 4;
  return value;
}

std::string JsonReader::string() {
  if (peek() != Kind::string) fail("expected a string");
  ++at_;
  std::string out;
  for (;;) {
    std::size_t run = at_;
    while (run < text_.size() && text_[run] != '"' && text_[run] != '\\' &&
           static_cast<unsigned char>(text_[run]) >= 0x20) {
      ++run;
    }
    out += text_.substr(at_, run - at_);
    at_ = run;
    if (at_ == text_.size()) fail("string is not closed");
    if (text_[at_] == '"') {
      ++at_;
      return out;
    }
    if (text_[at_] != '\\') fail("control character in a string");
    if (++at_ == text_.size()) fail("string is not closed");
    const char escape = text_[at_];
    const std::size_t which = std::string_view("\"\\/bfnrt").find(escape);
    if (which != std::string_view::npos) {
      out += "\"\\/\b\f\n\r\t"[which];
      ++at_;
      continue;
    }
    if (escape != 'u') fail("unknown escape in a string");
    ++at_;
    char32_t c = hex4();
    if (c >= 0xd800 && c <= 0xdfff) {  // a code point above U+FFFF is written as two surrogates
      if (c >= 0xdc00 || text_.substr(at_, 2) != "\\u") fail("lone surrogate in a string");
      at_ += 2;
      const unsigned low = hex4();
      if (low < 0xdc00 || low > 0xdfff) fail("lone surrogate in a string");
      c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    utf8_append(out, c);
  }
}

// number = [-] (0 | 1-9 digits) [. digits] [(e|E) [+|-] digits]
std::string_view JsonReader::number_token() {
  if (peek() != Kind::number) fail("expected a number");
  std::size_t i = at_;
  const auto digits = [&] {
    const std::size_t from = i;
    while (i < text_.size() && text_[i] >= '0' && text_[i] <= '9') ++i;
    if (i == from) fail("malformed number");
  };
  const auto is = [&](char c) { return i < text_.size() && text_[i] == c; };
  if (is('-')) ++i;
  if (is('0')) {
    ++i;
  } else {
    digits();
  }
  if (is('.')) ++i, digits();
  if (is('e') || is('E')) {
    ++i;
    if (is('+') || is('-')) ++i;
    digits();
  }
  if (i < text_.size() && text_[i] >= '0' && text_[i] <= '9') fail("number starts with a zero");
  return text_.substr(at_, i - at_);
}

template <class T>
T JsonReader::number_as(const char* expected) {
  const std::string_view token = number_token();
  const char* const last = token.data() + token.size();
  T value = 0;
  const auto [end, error] = std::from_chars(token.data(), last, value);
  if (error != std::errc() || end != last) fail(expected);
  at_ += token.size();
  return value;
}

double JsonReader::number() {
  return number_as<double>("number beyond double precision");
}
std::int64_t JsonReader::integer() {
  return number_as<std::int64_t>("expected a 64-bit integer");
}

void JsonReader::literal(std::string_view word) {
  if (text_.substr(at_, word.size()) != word) fail("no JSON value");
  at_ += word.size();
}

bool JsonReader::boolean() {
  if (peek() != Kind::logical) fail("expected true or false");
  const bool value = text_[at_] == 't';
  literal(value ? "true" : "false");
  return value;
}

void JsonReader::null() {
  if (peek() != Kind::null) fail("expected null");
  literal("null");
}

void JsonReader::skip() {  // recursion is bounded by max_depth
  const Kind kind = peek();
  if (kind == Kind::object)
    for (begin_object(); next_key();) skip();
  else if (kind == Kind::array)
    for (begin_array(); next_item();) skip();
  else if (kind == Kind::string)
    string();
  else if (kind == Kind::number)
    number();
  else if (kind == Kind::logical)
    boolean();
  else
    null();
}

std::string_view JsonReader::raw() {
  peek();
  const std::size_t from = at_;
  skip();
  return text_.substr(from, at_ - from);
}

void JsonReader::end() {
  if (!levels_.empty()) fail(levels_.back().object ? "object is not closed" : "array is not closed");
  space();
  if (at_ != text_.size()) fail("text after the end of the JSON value");
}

std::string json_string(std::string_view s) {
  std::string out = "\"";
  while (!s.empty()) {
    const std::size_t valid = utf8_valid_bytes(s);
    for (const char c : s.substr(0, valid)) {
      const std::size_t which = std::string_view("\"\\\n\r\t").find(c);
      if (which != std::string_view::npos) {
        out += '\\';
        out += "\"\\nrt"[which];
      } else if (static_cast<unsigned char>(c) < 0x20) {
        out += "\\u00";
        out += "01"[c >> 4];
        out += "0123456789abcdef"[c & 15];
      } else {
        out += c;
      }
    }
    s.remove_prefix(valid);
    if (!s.empty()) {
      out += "\xef\xbf\xbd";
      s.remove_prefix(1);
    }
  }
  return out += '"';
}

std::string json_excerpt(std::string_view s) {
  return json_string(utf8_shortened(s, 80));
}

namespace {
template <class T>
std::string shortest(T x) {
  if (!std::isfinite(x)) return "null";
  char buffer[32];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, x).ptr);
}
}  // namespace

std::string json_number(double x) {
  return shortest(x);
}
std::string json_number(float x) {
  return shortest(x);
}

}  // namespace tg::io
