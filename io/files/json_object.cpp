#include "io/files/json_object.h"

#include <algorithm>
#include <iterator>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include "io/files/utf8.h"

namespace tg::io {

namespace {

using Kind = JsonReader::Kind;

constexpr std::size_t most_of_value = 100;  // bytes of a value in a message

// Returns the start of a JSON value without line breaks and indentation. Strings contain no line breaks.
std::string on_one_line(const std::string& json) {
  std::string line;
  for (std::size_t i = 0; i < json.size() && line.size() <= most_of_value; ++i) {
    if (json[i] != '\n' && json[i] != '\r') {
      line += json[i];
      continue;
    }
    i = std::min(json.find_first_not_of(" \t\r\n", i), json.size()) - 1;
    line += ' ';
  }
  return utf8_shortened(line, most_of_value);
}

template <class Read>
auto items_of(JsonReader& json, Read read) {
  std::vector<decltype(read())> all;
  json.begin_array();
  while (json.next_item()) {
    if (std::ssize(all) == JsonObject::most_items) json.fail("too many items");
    all.push_back(read());
  }
  return all;
}

}  // namespace

// Reads one member. If the member has a different kind, the error contains the member and its value.
class JsonObject::Member {
 public:
  Member(const JsonObject& of, std::string key, const std::string& text, const char* expected)
      : of_(of), key_(std::move(key)), expected_(expected), json_(text, of.where_ + ": " + key_) {}

  template <class Read>
  auto read(Kind kind, Read read) {
    if (json_.peek() != kind) of_.refuse(key_, expected_);
    try {
      return read(json_);
    } catch (const FormatError&) {
      of_.refuse(key_, expected_);
    }
  }
  Kind kind() { return json_.peek(); }

 private:
  const JsonObject& of_;
  std::string key_, expected_;
  JsonReader json_;
};

JsonObject::JsonObject(std::string_view text, std::string where) : where_(std::move(where)) {
  JsonReader json(text, where_);
  json.begin_object();
  while (const auto key = json.next_key()) members_[*key] = std::string(json.raw());
  json.end();
}

bool JsonObject::is_set(const std::string& key) const {
  const auto found = members_.find(key);
  return found != members_.end() && found->second != "null";
}

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> all;
  for (const auto& [key, json] : members_) all.push_back(key);
  return all;
}

void JsonObject::refuse(const std::string& key, const std::string& expected) const {
  const auto found = members_.find(key);
  if (found == members_.end()) throw FormatError(where_ + ": has no " + key + ", expected " + expected);
  throw FormatError(where_ + ": " + key + " is " + on_one_line(found->second) + ", expected " + expected);
}

JsonObject::Member JsonObject::member(const std::string& key, const char* expected) const {
  if (!is_set(key)) refuse(key, expected);
  return {*this, key, members_.at(key), expected};
}

std::int64_t JsonObject::integer(const std::string& key) const {
  return member(key, "an integer").read(Kind::number, [](JsonReader& j) { return j.integer(); });
}

std::string JsonObject::string(const std::string& key) const {
  return member(key, "a string").read(Kind::string, [](JsonReader& j) { return j.string(); });
}

JsonObject JsonObject::object(const std::string& key) const {
  member(key, "an object").read(Kind::object, [](JsonReader&) { return true; });
  return JsonObject(members_.at(key), where_ + ": " + key);
}

std::vector<std::string> JsonObject::strings(const std::string& key) const {
  return member(key, "an array of strings").read(Kind::array, [](JsonReader& j) {
    return items_of(j, [&] { return j.string(); });
  });
}

std::vector<std::int64_t> JsonObject::integers(const std::string& key) const {
  Member m = member(key, "an integer or an array of integers");
  if (m.kind() == Kind::number) return {integer(key)};
  return m.read(Kind::array, [](JsonReader& j) { return items_of(j, [&] { return j.integer(); }); });
}

std::vector<double> JsonObject::numbers(const std::string& key) const {
  return member(key, "an array of numbers").read(Kind::array, [](JsonReader& j) {
    return items_of(j, [&] { return j.number(); });
  });
}

std::int64_t JsonObject::integer(const std::string& key, std::int64_t otherwise) const {
  return is_set(key) ? integer(key) : otherwise;
}

double JsonObject::number(const std::string& key, double otherwise) const {
  if (!is_set(key)) return otherwise;
  return member(key, "a number").read(Kind::number, [](JsonReader& j) { return j.number(); });
}

bool JsonObject::boolean(const std::string& key, bool otherwise) const {
  if (!is_set(key)) return otherwise;
  return member(key, "true or false").read(Kind::logical, [](JsonReader& j) { return j.boolean(); });
}

std::string JsonObject::string(const std::string& key, const std::string& otherwise) const {
  return is_set(key) ? string(key) : otherwise;
}

std::string JsonObject::text() const {
  return json_object_text(members_);
}

std::string json_object_text(const std::map<std::string, std::string>& members) {
  const std::string text =
      list_text(members, ",\n  ", [](const auto& m) { return json_string(m.first) + ": " + m.second; });
  return (text.empty() ? "{" : "{\n  " + text + "\n") + "}\n";
}

std::string json_real(double x) {
  const std::string text = json_number(x);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

std::string json_of(std::int64_t x) {
  return std::to_string(x);
}
std::string json_of(double x) {
  return json_real(x);
}
std::string json_of(bool x) {
  return x ? "true" : "false";
}
std::string json_of(const std::string& x) {
  return json_string(x);
}

}  // namespace tg::io
