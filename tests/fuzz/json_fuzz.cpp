// Fuzz target for the JSON reader and for the manifest reader that uses it. The only exception for any input
// is FormatError. Writing and reading an accepted value does not change it.
#include <tilegrad/io/files/json.h>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/checkpoints/manifest.h>
#include "tests/fuzz/target.h"

namespace {

using namespace tg;

// Returns the next value in the canonical form of json_string and json_number.
std::string canonical(io::JsonReader& json) {
  using Kind = io::JsonReader::Kind;
  const Kind kind = json.peek();
  if (kind == Kind::string) return io::json_string(json.string());
  if (kind == Kind::number) return io::json_number(json.number());
  if (kind == Kind::logical) return json.boolean() ? "true" : "false";
  if (kind == Kind::null) {
    json.null();
    return "null";
  }
  std::string s;
  if (kind == Kind::array) {
    json.begin_array();
    while (json.next_item()) s += (s.empty() ? "" : ",") + canonical(json);
    return "[" + s + "]";
  }
  json.begin_object();
  while (const auto key = json.next_key())
    s += (s.empty() ? "" : ",") + io::json_string(*key) + ":" + canonical(json);
  return "{" + s + "}";
}

std::string canonical(std::string_view text) {
  io::JsonReader json(text, "fuzz");
  std::string s = canonical(json);
  json.end();
  return s;
}

bool skipped(std::string_view text) {
  try {
    io::JsonReader json(text, "fuzz");
    json.skip();
    json.end();
    return true;
  } catch (const FormatError&) {
    return false;
  }
}

}  // namespace

void fuzz_one(std::string_view bytes) {
  std::string text;
  bool accepted = false;
  try {
    text = canonical(bytes);
    accepted = true;
  } catch (const FormatError&) {
  }
  fuzz_expect(skipped(bytes) == accepted, "skip() is as strict as reading");
  if (accepted) fuzz_expect(canonical(text) == text, "a written value is read back unchanged");
  try {
    const io::Manifest manifest = io::parse_manifest(bytes, "fuzz");
    const std::string again = to_json(manifest);
    fuzz_expect(to_json(io::parse_manifest(again, "fuzz")) == again, "a manifest round-trips");
  } catch (const FormatError&) {
  }
}
