#include "io/files/json_tree.h"

#include "io/files/utf8.h"

namespace tg::io {
namespace {

constexpr std::size_t most_text = 100;  // bytes

void write_json(const JsonTree& tree, std::string& out) {
  if (out.size() > most_text) return;
  switch (tree.kind) {
    case JsonReader::Kind::object:
    case JsonReader::Kind::array: {
      const bool object = tree.kind == JsonReader::Kind::object;
      out += object ? '{' : '[';
      const char* between = "";
      for (const auto& [key, value] : tree.members)
        out += between + json_string(key) + ": ", write_json(value, out), between = ", ";
      for (const JsonTree& item : tree.items) out += between, write_json(item, out), between = ", ";
      out += object ? '}' : ']';
      break;
    }
    case JsonReader::Kind::string:
      out += json_string(tree.scalar);
      break;
    case JsonReader::Kind::number:
      out += tree.scalar;
      break;
    case JsonReader::Kind::logical:
      out += tree.logical ? "true" : "false";
      break;
    case JsonReader::Kind::null:
      out += "null";
      break;
  }
}

}  // namespace

const JsonTree* JsonTree::find(std::string_view key) const {
  for (const auto& [name, value] : members)
    if (name == key) return &value;
  return nullptr;
}

std::string JsonTree::text() const {
  std::string out;
  write_json(*this, out);
  return utf8_shortened(out, most_text);
}

JsonTree read_json_tree(JsonReader& json) {  // recursion is bounded by JsonReader::max_depth
  JsonTree tree{.kind = json.peek()};
  switch (tree.kind) {
    case JsonReader::Kind::object:
      json.begin_object();
      while (auto key = json.next_key()) tree.members.emplace_back(std::move(*key), read_json_tree(json));
      break;
    case JsonReader::Kind::array:
      json.begin_array();
      while (json.next_item()) tree.items.push_back(read_json_tree(json));
      break;
    case JsonReader::Kind::string:
      tree.scalar = json.string();
      break;
    case JsonReader::Kind::number:
      tree.scalar = json_number(json.number());
      break;
    case JsonReader::Kind::logical:
      tree.logical = json.boolean();
      break;
    case JsonReader::Kind::null:
      json.null();
      break;
  }
  return tree;
}

}  // namespace tg::io
