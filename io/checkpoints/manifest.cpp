#include <tilegrad/io/checkpoints/manifest.h>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include "core/base/messages.h"
#include "io/checkpoints/own_files.h"

namespace tg::io {
namespace {

constexpr std::string_view format_name = "tilegrad checkpoint";
constexpr std::int64_t format_version = 1;

Manifest::File read_manifest_file(JsonReader& json, const std::string& name) {
  Manifest::File file;
  std::int64_t bytes = 0;
  bool has_bytes = false;
  json.object({{"bytes",
                [&] {
                  bytes = json.integer(), has_bytes = true;
                  if (bytes < 0) json.fail("file " + json_excerpt(name) + " has a negative size");
                }},
               {"xxh3_128", [&] {
                  file.xxh3_128 = json.string();
                  if (file.xxh3_128.size() != 32 ||
                      file.xxh3_128.find_first_not_of("0123456789abcdef") != std::string::npos)
                    json.fail("the checksum of " + json_excerpt(name) + " is not 32 hexadecimal digits");
                }}});
  file.bytes = static_cast<std::uint64_t>(bytes);
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
  s += list_text(manifest.files, ",", [](const auto& listed) {
    const auto& [name, file] = listed;
    return "\n    " + json_string(name) + ": {\"bytes\": " + std::to_string(file.bytes) +
           ", \"xxh3_128\": " + json_string(file.xxh3_128) + "}";
  });
  s += "\n  }";
  if (!manifest.unfinished.empty())
    s += ",\n  \"unfinished\": [" + list_text(manifest.unfinished, ", ", json_string) + "]";
  return s + "\n}\n";
}

bool is_manifest(std::string_view text) {
  return text.find(json_string(format_name)) != text.npos;
}

std::set<std::string> names_in_manifest(std::string_view text) {
  std::set<std::string> names;
  try {
    JsonReader json(text, "manifest");
    json.object(
        {{"files",
          [&] { json.object({}, [&](const std::string& name) { names.insert(name), json.skip(); }); }},
         {"unfinished", [&] {
            for (json.begin_array(); json.next_item();) names.insert(json.string());
          }}});
  } catch (const FormatError&) {  // the writer was stopped, or the manifest is damaged
  }
  return names;
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  JsonReader json(text, where);
  Manifest m;
  std::string format;
  std::int64_t version = 0;
  m.step = m.best_step = -1;
  json.object({{"format", [&] { format = json.string(); }},
               {"version", [&] { version = json.integer(); }},
               {"step", [&] { m.step = json.integer(); }},
               {"best_step", [&] { m.best_step = json.integer(); }},
               {"files", [&] {
                  json.object({}, [&](const std::string& name) {
                    if (!is_plain_name(name))
                      json.fail("file " + json_excerpt(name) + " is not a plain name");
                    m.files[name] = read_manifest_file(json, name);
                  });
                }}});
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
