#include "io/checkpoints/own_files.h"

#include <filesystem>
#include <utility>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/json.h>
#include "core/base/file_write.h"
#include "core/base/messages.h"

namespace tg::io {
namespace {

constexpr std::string_view run_format = "tilegrad run";
constexpr std::int64_t run_version = 1;

std::set<std::string> parse_names(std::string_view text, const std::string& where) {
  JsonReader json(text, where);
  std::set<std::string> names;
  std::string format;
  std::int64_t version = 0;
  json.object({{"format", [&] { format = json.string(); }},
               {"version", [&] { version = json.integer(); }},
               {"files", [&] {
                  for (json.begin_array(); json.next_item();) names.insert(json.string());
                }}});
  json.end();
  if (format != run_format || version != run_version)
    throw FormatError(where + " is not the list of files of a run: got format " + json_excerpt(format) +
                      ", version " + std::to_string(version) + ", expected " + json_excerpt(run_format) +
                      ", version " + std::to_string(run_version) + "; move it away");
  return names;
}

}  // namespace

RunMarker::RunMarker(std::string directory) : directory_(std::move(directory)) {
  if (is_replaceable(path(), "checkpoint"))
    names_ = parse_names(read_file(path(), "checkpoint"), "[checkpoint] " + path());
}

void RunMarker::add(const std::string& name) {
  if (!names_.insert(name).second) return;
  std::string text = "{\n  \"format\": " + json_string(run_format) +
                     ",\n  \"version\": " + std::to_string(run_version) + ",\n  \"files\": [";
  text += list_text(names_, ", ", json_string) + "]\n}\n";
  const std::string_view piece = text;
  try {
    replace_file(path(), {&piece, 1}, "checkpoint");
  } catch (...) {
    names_.erase(name);
    throw;
  }
}

void RunMarker::remove() {
  std::error_code ignored;
  std::filesystem::remove(path(), ignored);
  names_.clear();
}

}  // namespace tg::io
