#include <tilegrad/io/files/file.h>

#include <filesystem>
#include <utility>

#include <tilegrad/core/base/error.h>
#include "core/os/file.h"
#include "io/files/input_file.h"

namespace tg::io {

void sync_directory(const std::string& directory, std::string_view who) {
  tg::sync_directory(directory, who);
}

void write_new_file(const std::string& path, std::span<const std::string_view> pieces, std::string_view who) {
  auto [file, error] = os::open(path, os::Open::create);
  check_file(who, "create", path, error);
  for (std::string_view piece : pieces) check_file(who, "write", path, os::write_all(file.fd, piece));
  check_file(who, "write", path, os::sync(file.fd));
  check_file(who, "write", path, os::close(std::exchange(file.fd, -1)));
}

void overwrite_start(const std::string& path, std::string_view bytes, std::string_view who) {
  auto [file, error] = os::open(path, os::Open::existing);
  check_file(who, "open", path, error);
  check_file(who, "write", path, os::write_all(file.fd, bytes));
  check_file(who, "write", path, os::sync_if_possible(file.fd));
  check_file(who, "write", path, os::close(std::exchange(file.fd, -1)));
}

std::string read_file(const std::string& path, std::string_view who) {
  return InputFile(path, who).read();
}

namespace {

// Whether the path is one of the standard streams of this process, or a device such as /dev/null. These are
// written in place.
bool is_stream(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code unknown;
  if (path == "/dev/stdout" || path == "/dev/stderr" || path.starts_with("/dev/fd/") ||
      path.starts_with("/proc/self/fd/"))
    return fs::exists(path, unknown) && !fs::is_directory(path, unknown);
  return path.starts_with("/dev/") && fs::is_character_file(fs::symlink_status(path, unknown));
}

}  // namespace

void require_replaceable(const std::string& path, std::string_view who, Existing existing) {
  const bool in_place = is_stream(path), exists = !in_place && is_replaceable(path, who);
  if (exists && existing == Existing::refuse)
    throw Error("[" + std::string(who) + "] " + path + " exists: --overwrite replaces it");
  check_file(who, "write", path, os::check_writable(in_place ? path : folder_of(path), !in_place));
}

void replace_file(const std::string& path, std::span<const std::string_view> pieces, std::string_view who) {
  if (!is_stream(path)) return replace_regular_file(path, pieces, who, Durable::yes);
  OutputFile out(path, who, OutputFile::Start::append);
  for (std::string_view piece : pieces) out.write(piece);
  out.close();
}

OutputFile::OutputFile(std::string path, std::string_view who, Start start)
    : path_(std::move(path)), who_(who) {
  os::Open how = os::Open::append_stream;
  if (!is_stream(path_)) {
    const bool exists = is_replaceable(path_, who_);
    how = exists && start == Start::append ? os::Open::append : os::Open::append_new;
    // Creates a new file, so that other hard links to the old file keep its content.
    if (exists && start == Start::empty) check_file(who_, "replace", path_, os::remove(path_));
  }
  auto [file, error] = os::open(path_, how);
  check_file(who_, "create", path_, error);
  fd_ = std::exchange(file.fd, -1);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) os::close(fd_);
}

void OutputFile::write(std::string_view bytes) {
  check_file(who_, "write", path_, os::write_all(fd_, bytes));
}

void OutputFile::sync() {
  check_file(who_, "write", path_, os::sync_if_possible(fd_));
  const os::FileStatus open = os::status(fd_), named = os::status(path_);
  check_file(who_, "write", path_, open.error);
  if (open.id != named.id)
    throw Error("[" + who_ + "] " + path_ + (named.error == 0 ? " was replaced" : " was removed") +
                " while it was being written: what is written now is lost");
}

void OutputFile::close() {
  if (fd_ >= 0) check_file(who_, "write", path_, os::close(std::exchange(fd_, -1)));
}

}  // namespace tg::io
