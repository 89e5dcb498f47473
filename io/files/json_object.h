// JsonObject: the members of a JSON object, read by name when they are needed. For small files of settings.
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
  static constexpr std::int64_t most_items = 1000;  // of an array: no setting has more

  // Throws FormatError, beginning with `where`, for what is not one JSON object.
  JsonObject(std::string_view text, std::string where);

  bool has(const std::string& key) const { return members_.contains(key); }
  bool is_set(const std::string& key) const;  // it is there, and not null
  std::vector<std::string> keys() const;      // sorted
  const std::string& json(const std::string& key) const { return members_.at(key); }  // its text
  // Throws FormatError for a member that is not set or of another kind.
  std::int64_t integer(const std::string& key) const;
  std::string string(const std::string& key) const;
  JsonObject object(const std::string& key) const;
  std::vector<std::string> strings(const std::string& key) const;    // an array
  std::vector<std::int64_t> integers(const std::string& key) const;  // an array, or one number
  std::vector<double> numbers(const std::string& key) const;         // an array
  // The same, but `otherwise` for a member that is not set.
  std::int64_t integer(const std::string& key, std::int64_t otherwise) const;
  double number(const std::string& key, double otherwise) const;
  bool boolean(const std::string& key, bool otherwise) const;
  std::string string(const std::string& key, const std::string& otherwise) const;

  // Sets a member to a JSON text, and the object as text: its members in the order of their names.
  void set(const std::string& key, std::string json) { members_[key] = std::move(json); }
  std::string text() const;

  // Throws FormatError: "<where>: key is <its text>, expected …".
  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const;

 private:
  class Member;
  Member member(const std::string& key, const char* expected) const;

  std::string where_;
  std::map<std::string, std::string> members_;  // their texts
};

// A number that Python reads as a float: "1.0", "1e-05".
std::string json_real(double x);

// ---- Values as JSON texts; an empty optional is null

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

// An object of members whose values are JSON texts, a line each, in the order of their names.
std::string json_object_text(const std::map<std::string, std::string>& members);

// The members of such an object, one by one.
struct JsonMembers {
  std::map<std::string, std::string> members = {};  // their texts

  void set_json(const std::string& key, std::string json) { members[key] = std::move(json); }
  template <class T>
  void set(const std::string& key, const T& value) {
    set_json(key, json_of(value));
  }
  void set(const std::string& key, const char* value) { set(key, std::string(value)); }
  std::string text() const { return json_object_text(members); }
};

}  // namespace tg::io
