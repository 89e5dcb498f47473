#include "io/files/json_tree.h"

#include "io/files/utf8.h"

namespace tg::io {
namespace {

using Kind = JsonReader::Kind;

constexpr std::size_t most_text = 100;  // bytes

void write_json(const JsonTree& tree, std::string& out) {
  if (out.size() > most_text) return;
  if (tree.kind == Kind::object || tree.kind == Kind::array) {
    const bool object = tree.kind == Kind::object;
    out += object ? '{' : '[';
    const char* between = "";
    for (const auto& [key, value] : tree.members)
      out += between + json_string(key) + ": ", write_json(value, out), between = ", ";
    for (const JsonTree& item : tree.items) out += between, write_json(item, out), between = ", ";
    out += object ? '}' : ']';
  } else if (tree.kind == Kind::string) {
    out += json_string(tree.scalar);
  } else {
    out += tree.kind == Kind::number ? tree.scalar
           : tree.is_null()          ? "null"
           : tree.logical            ? "true"
                                     : "false";
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
  if (tree.kind == Kind::object)
    for (json.begin_object(); auto key = json.next_key();)
      tree.members.emplace_back(std::move(*key), read_json_tree(json));
  else if (tree.kind == Kind::array)
    for (json.begin_array(); json.next_item();) tree.items.push_back(read_json_tree(json));
  else if (tree.kind == Kind::string)
    tree.scalar = json.string();
  else if (tree.kind == Kind::number)
    tree.scalar = json_number(json.number());
  else if (tree.kind == Kind::logical)
    tree.logical = json.boolean();
  else
    json.null();
  return tree;
}

}  // namespace tg::io
