#include "io/files/staged_folder.h"

#include <filesystem>
#include <utility>
#include <vector>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include "core/os/file.h"

namespace tg::io {

namespace {

namespace fs = std::filesystem;

constexpr const char* mark_name = ".unfinished";

std::string without_slash(std::string folder) {
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  return folder;
}

}  // namespace

void require_new_folder(const std::string& folder, const std::string& who) {
  const std::string name = fs::path(without_slash(folder)).filename().string();
  if (name.empty() || name == "." || name == "..")
    throw Error("[" + who + "] expected the name of a new folder, got '" + folder + "'");
  if (is_taken(without_slash(folder)))
    throw Error("[" + who + "] " + folder + " exists: choose another name, or remove it first");
}

StagedFolder::StagedFolder(const std::string& folder, std::string who)
    : folder_(without_slash(folder)), who_(std::move(who)) {
  require_new_folder(folder_, who_);
  const std::string name = fs::path(folder_).filename().string();
  const std::string around = fs::path(folder_).parent_path().string();
  parent_ = around.empty() ? "." : around;
  staged_ = fs::path(around) / ("." + name + ".unfinished");
  std::error_code error;
  const bool is_new = fs::create_directory(staged_, error);
  check_file(who_, "create", folder_, error.value());
  os::Opened opened = os::open(staged_, os::Open::folder_itself);
  check_file(who_, "create", folder_, opened.error);
  std::swap(lock_.fd, opened.file.fd);
  if (!os::try_lock(lock_.fd)) throw Error("[" + who_ + "] another process is writing " + folder_);
  if (is_new || fs::is_empty(staged_, error)) {
    mark();
    return;
  }
  if (!is_taken(path(mark_name)))
    throw Error("[" + who_ + "] " + staged_ + " is in the way: no file " + mark_name +
                " marks it as unfinished; move it away");
  std::vector<fs::path> left;  // left by a killed process
  for (fs::directory_iterator it(staged_, error), end; !error && it != end; it.increment(error))
    if (it->path().filename() != mark_name) left.push_back(it->path());
  for (const fs::path& path : left) fs::remove_all(path, error);
}

void StagedFolder::mark() const {
  write_new_file(path(mark_name), {}, who_);
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;
  if (!staged_.empty()) fs::remove_all(staged_, ignored);
}

void StagedFolder::publish_file(const std::string& name) {
  require_new_folder(folder_, who_);
  check_file(who_, "create", folder_, os::rename_new(path(name), folder_));
  sync_directory(parent_, who_);
}

void StagedFolder::publish() {
  require_new_folder(folder_, who_);
  sync_directory(staged_, who_);
  check_file(who_, "create", folder_, os::rename_new(staged_, folder_));
  staged_.clear();
  // The mark is removed last. Without it, the next process would not remove the hidden folder of a killed
  // one.
  std::error_code error;
  fs::remove(folder_ + "/" + mark_name, error);
  check_file(who_, "write", folder_, error.value());
  sync_directory(folder_, who_);
  sync_directory(parent_, who_);
}

}  // namespace tg::io
