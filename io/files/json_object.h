// JsonObject: the members of a JSON object, read by name. It is for small files with settings.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/messages.h"

namespace tg::io {

class JsonObject {
 public:
  static constexpr std::int64_t most_items = 1000;  // items of an array: no setting has more

  // Throws FormatError if the text is not a JSON object. Messages begin with `where`.
  JsonObject(std::string_view text, std::string where);

  bool has(const std::string& key) const { return members_.contains(key); }
  bool is_set(const std::string& key) const;  // whether it exists and is not null
  std::vector<std::string> keys() const;      // sorted
  const std::string& json(const std::string& key) const { return members_.at(key); }  // its JSON text
  // Throws FormatError if the member is not set or has a different kind.
  std::int64_t integer(const std::string& key) const;
  std::string string(const std::string& key) const;
  JsonObject object(const std::string& key) const;
  std::vector<std::string> strings(const std::string& key) const;    // an array
  std::vector<std::int64_t> integers(const std::string& key) const;  // an array, or one number
  std::vector<double> numbers(const std::string& key) const;         // an array
  // These functions return `otherwise` if the member is not set.
  std::int64_t integer(const std::string& key, std::int64_t otherwise) const;
  double number(const std::string& key, double otherwise) const;
  bool boolean(const std::string& key, bool otherwise) const;
  std::string string(const std::string& key, const std::string& otherwise) const;

  // set() sets a member to a JSON value. text() returns the object with its members sorted by name.
  void set(const std::string& key, std::string json) { members_[key] = std::move(json); }
  std::string text() const;

  // Throws FormatError: "<where>: key is <its text>, expected …".
  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const;

 private:
  class Member;
  Member member(const std::string& key, const char* expected) const;

  std::string where_;
  std::map<std::string, std::string> members_;  // JSON values by name
};

// Returns a number that Python parses as a float, such as "1.0" or "1e-05".
std::string json_real(double x);

// ---- Values as JSON; an empty optional is null

std::string json_of(std::int64_t x);
std::string json_of(double x);  // json_real()
std::string json_of(bool x);
std::string json_of(const std::string& x);
template <class T>
std::string json_of(const std::optional<T>& x) {
  return x ? json_of(*x) : "null";
}
template <class T>
std::string json_of(const std::vector<T>& list) {
  return "[" + list_text(list, ", ", [](const T& x) { return json_of(x); }) + "]";
}

// ---- Writing

// Returns an object with one member per line, sorted by name. Values are JSON.
std::string json_object_text(const std::map<std::string, std::string>& members);

// Collects the members of an object one by one.
struct JsonMembers {
  std::map<std::string, std::string> members = {};  // JSON values by name

  void set_json(const std::string& key, std::string json) { members[key] = std::move(json); }
  template <class T>
  void set(const std::string& key, const T& value) {
    set_json(key, json_of(value));
  }
  void set(const std::string& key, const char* value) { set(key, std::string(value)); }
  std::string text() const { return json_object_text(members); }
};

}  // namespace tg::io
