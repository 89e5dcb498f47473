// A JSON value as a tree in memory. It is for small parts of a file whose members may have any order.
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
  std::string scalar = {};  // the content of a string, the digits of a number
  std::vector<std::pair<std::string, JsonTree>> members = {};
  std::vector<JsonTree> items = {};

  bool is_null() const { return kind == JsonReader::Kind::null; }
  const JsonTree* find(std::string_view key) const;  // null if it is not an object or lacks the member
  std::string text() const;                          // as JSON, truncated after about 100 bytes
};

// Reads the next value.
JsonTree read_json_tree(JsonReader& json);

}  // namespace tg::io
