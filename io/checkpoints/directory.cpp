#include "io/checkpoints/own_files.h"

#include <filesystem>
#include <set>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/checkpoints/manifest.h>
#include "core/base/messages.h"
#include "io/files/input_file.h"
#include "io/files/utf8.h"

namespace tg::io {
namespace {

namespace fs = std::filesystem;

std::string manifest_in(const std::string& directory) {
  try {
    const InputFile file(directory + "/" + manifest_name, "checkpoint");
    return file.size() > max_manifest_bytes ? std::string() : file.read();
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

bool is_plain_name(std::string_view name) {
  if (has_control_characters(name)) return false;
  return !name.empty() && name.front() != '.' && utf8_valid_bytes(name) == name.size() &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

bool is_directory_itself(const std::string& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() == fs::file_type::directory;
}

bool is_checkpoint(const std::string& directory) {
  return is_directory_itself(directory) && is_manifest(manifest_in(directory));
}

bool holds_only_own_files(const std::string& directory) {
  if (!is_directory_itself(directory)) return false;
  const std::string manifest = manifest_in(directory);
  const std::set<std::string> listed = names_in_manifest(manifest);
  const std::string temporary = "." + std::string(manifest_name) + ".tmp.";
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code unknown;
    const bool is_file = it->symlink_status(unknown).type() == fs::file_type::regular;
    // A killed writer may leave an empty manifest, or a manifest that is truncated before its list of files.
    const bool is_manifest_file =
        name == manifest_name && (is_manifest(manifest) || it->file_size(unknown) == 0);
    const bool is_own = is_manifest_file || name.starts_with(temporary) || listed.contains(name) ||
                        (is_manifest(manifest) && listed.empty() && name.ends_with(".safetensors"));
    if (!is_file || !is_own) return false;
  }
  return !error;
}

void remove_checkpoint(const std::string& directory) {
  if (!holds_only_own_files(directory)) return;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->path().filename() != manifest_name) fs::remove(it->path(), ignored);
  }
  fs::remove(directory + "/" + manifest_name, error);
  fs::remove(directory, error);
}

}  // namespace tg::io
