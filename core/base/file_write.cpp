#include "core/base/file_write.h"

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include <tilegrad/core/base/error.h>
#include "core/os/file.h"

namespace tg {

namespace fs = std::filesystem;

void fail_file(std::string_view who, const char* verb, const std::string& path, const std::string& reason) {
  throw Error("[" + std::string(who) + "] cannot " + verb + " " + path + ": " + reason);
}

void check_file(std::string_view who, const char* verb, const std::string& path, int error) {
  if (error != 0) fail_file(who, verb, path, std::generic_category().message(error));
}

FileDescriptor::~FileDescriptor() {
  if (fd >= 0) os::close(fd);
}

void sync_directory(const std::string& directory, std::string_view who) {
  const auto [folder, error] = os::open(directory, os::Open::folder);
  check_file(who, "open the directory", directory, error);
  check_file(who, "sync the directory", directory, os::sync_if_possible(folder.fd));
}

namespace {

fs::file_status replaceable_status(const std::string& path, std::string_view who) {
  std::error_code unknown;
  const fs::file_status old = fs::symlink_status(path, unknown);
  if (fs::is_directory(old)) check_file(who, "write", path, EISDIR);
  if (fs::exists(old) && !fs::is_regular_file(old))
    fail_file(who, "write", path,
              std::string("it is a ") + (fs::is_symlink(old) ? "symbolic link" : "device, pipe or socket") +
                  ", expected a regular file");
  return old;
}

}  // namespace

bool is_replaceable(const std::string& path, std::string_view who) {
  return fs::exists(replaceable_status(path, who));
}

bool is_taken(const std::string& path) {
  std::error_code unknown;
  return fs::symlink_status(path, unknown).type() != fs::file_type::not_found;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

FileDescriptor create_temporary(const std::string& path, std::string& name, std::string_view who) {
  for (int attempt = 0;; ++attempt) {
    name = os::temporary_name(path);
    auto [file, error] = os::open(name, os::Open::create);
    // An earlier process with the same id may have left the file, for example in a container.
    if (error == EEXIST && attempt < 1000) continue;
    check_file(who, "create", path, error);
    return std::move(file);
  }
}

void replace_regular_file(const std::string& path, std::span<const std::string_view> pieces,
                          std::string_view who, Durable durable) {
  const fs::file_status old = replaceable_status(path, who);
  std::string temporary;
  FileDescriptor file = create_temporary(path, temporary, who);
  try {
    for (std::string_view piece : pieces) check_file(who, "write", path, os::write_all(file.fd, piece));
    if (fs::exists(old))
      check_file(who, "set the permissions of", path, os::set_permissions(file.fd, old.permissions()));
    if (durable == Durable::yes) check_file(who, "write", path, os::sync(file.fd));
    check_file(who, "write", path, os::close(std::exchange(file.fd, -1)));
    std::error_code error;
    fs::rename(temporary, path, error);
    check_file(who, "replace", path, error.value());
  } catch (...) {
    os::remove(temporary);
    throw;
  }
  if (durable == Durable::yes) sync_directory(folder_of(path), who);
}

}  // namespace tg
