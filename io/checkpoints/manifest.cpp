#include <tilegrad/io/checkpoints/manifest.h>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include "io/checkpoints/own_files.h"

namespace tg::io {
namespace {

constexpr std::string_view format_name = "tilegrad checkpoint";
constexpr std::int64_t format_version = 1;

Manifest::File read_manifest_file(JsonReader& json, const std::string& name) {
  Manifest::File file;
  bool has_bytes = false;
  json.begin_object();
  while (const auto key = json.next_key()) {
    if (*key == "bytes") {
      const std::int64_t bytes = json.integer();
      if (bytes < 0) json.fail("file " + json_excerpt(name) + " has a negative size");
      file.bytes = static_cast<std::uint64_t>(bytes);
      has_bytes = true;
    } else if (*key == "xxh3_128") {
      file.xxh3_128 = json.string();
      if (file.xxh3_128.size() != 32 ||
          file.xxh3_128.find_first_not_of("0123456789abcdef") != std::string::npos)
        json.fail("the checksum of " + json_excerpt(name) + " is not 32 hexadecimal digits");
    } else {
      json.skip();
    }
  }
  if (!has_bytes || file.xxh3_128.empty())
    json.fail("file " + json_excerpt(name) + " has no size or no checksum");
  return file;
}

}  // namespace

std::string to_json(const Manifest& manifest) {
  std::string s = "{\n  \"format\": " + json_string(format_name) +
                  ",\n  \"version\": " + std::to_string(format_version) +
                  ",\n  \"step\": " + std::to_string(manifest.step) +
                  ",\n  \"best_step\": " + std::to_string(manifest.best_step) + ",\n  \"files\": {";
  const char* separator = "\n";
  for (const auto& [name, file] : manifest.files) {
    s += separator;
    s += "    " + json_string(name) + ": {\"bytes\": " + std::to_string(file.bytes) +
         ", \"xxh3_128\": " + json_string(file.xxh3_128) + "}";
    separator = ",\n";
  }
  s += "\n  }";
  separator = ",\n  \"unfinished\": [";
  for (const std::string& name : manifest.unfinished) s += separator + json_string(name), separator = ", ";
  return s + (manifest.unfinished.empty() ? "" : "]") + "\n}\n";
}

bool is_manifest(std::string_view text) {
  return text.find(json_string(format_name)) != text.npos;
}

std::set<std::string> names_in_manifest(std::string_view text) {
  std::set<std::string> names;
  try {
    JsonReader json(text, "manifest");
    json.begin_object();
    while (const auto key = json.next_key()) {
      if (*key == "files") {
        json.begin_object();
        while (const auto name = json.next_key()) names.insert(*name), json.skip();
      } else if (*key == "unfinished") {
        json.begin_array();
        while (json.next_item()) names.insert(json.string());
      } else {
        json.skip();
      }
    }
  } catch (const FormatError&) {  // its writer was stopped, or it is damaged
  }
  return names;
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  JsonReader json(text, where);
  Manifest m;
  std::string format;
  std::int64_t version = 0;
  m.step = m.best_step = -1;
  json.begin_object();
  while (const auto key = json.next_key()) {
    if (*key == "format") {
      format = json.string();
    } else if (*key == "version") {
      version = json.integer();
    } else if (*key == "step") {
      m.step = json.integer();
    } else if (*key == "best_step") {
      m.best_step = json.integer();
    } else if (*key == "files") {
      json.begin_object();
      while (const auto name = json.next_key()) {
        if (!is_plain_name(*name)) json.fail("file " + json_excerpt(*name) + " is not a plain name");
        m.files[*name] = read_manifest_file(json, *name);
      }
    } else {
      json.skip();
    }
  }
  json.end();
  if (format != format_name)
    json.fail("format is " + json_excerpt(format) + ", expected " + json_excerpt(format_name));
  if (version != format_version)
    json.fail("version is " + std::to_string(version) + ", expected " + std::to_string(format_version));
  if (m.step < 0 || m.best_step < 0) json.fail("step and best_step must be present and not negative");
  if (m.files.empty()) json.fail("no files: its writer was stopped");
  return m;
}

}  // namespace tg::io
