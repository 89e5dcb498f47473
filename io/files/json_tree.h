// A JSON value as a whole, for small parts of a file whose members come in any order.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tilegrad/io/files/json.h>

namespace tg::io {

struct JsonTree {
  JsonReader::Kind kind = JsonReader::Kind::null;
  bool logical = false;
  std::string scalar = {};  // a string's text, a number's digits
  std::vector<std::pair<std::string, JsonTree>> members = {};
  std::vector<JsonTree> items = {};

  bool is_null() const { return kind == JsonReader::Kind::null; }
  const JsonTree* find(std::string_view key) const;  // null if it is no object or has no such member
  std::string text() const;                          // as JSON, at most about 100 bytes of it
};

// The next value of the reader.
JsonTree read_json_tree(JsonReader& json);

}  // namespace tg::io
