// JsonObject: the members of a JSON object, read by name when they are needed. For small files of settings.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// An object of members whose values are JSON texts, a line each.
std::string json_object_text(const std::map<std::string, std::string>& members);
// A number that Python reads as a float: "1.0", "1e-05".
std::string json_real(double x);

}  // namespace tg::io
