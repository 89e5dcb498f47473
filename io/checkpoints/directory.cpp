#include "io/checkpoints/directory.h"

#include <filesystem>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/checkpoints/manifest.h>
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

// A writer that was killed before it could mark its directory leaves at most an empty manifest.
bool holds_nothing(const std::string& directory) {
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::error_code unknown;
    if (it->path().filename() != manifest_name || fs::file_size(it->path(), unknown) != 0) return false;
  }
  return !error;
}

}  // namespace

bool is_plain_name(std::string_view name) {
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

void remove_checkpoint(const std::string& directory) {
  if (!is_checkpoint(directory) && !(is_directory_itself(directory) && holds_nothing(directory))) return;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->path().filename() != manifest_name) fs::remove_all(it->path(), ignored);
  }
  fs::remove(directory + "/" + manifest_name, error);
  fs::remove(directory, error);
}

}  // namespace tg::io
