#include "core/base/file_write.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include <tilegrad/core/base/error.h>

namespace tg {

void fail_file(std::string_view who, const char* verb, const std::string& path, int error) {
  throw Error("[" + std::string(who) + "] cannot " + verb + " " + path + ": " +
              std::generic_category().message(error));
}

FileDescriptor::~FileDescriptor() {
  if (fd >= 0) ::close(fd);
}

void write_all(int fd, std::string_view bytes, const std::string& path, std::string_view who) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_file(who, "write", path, errno);
    if (n == 0) fail_file(who, "write", path, ENOSPC);  // no progress and no reason: do not loop for ever
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

void close_checked(int& fd, const std::string& path, std::string_view who) {
  if (::close(std::exchange(fd, -1)) != 0 && errno != EINTR) fail_file(who, "write", path, errno);
}

void sync_directory(const std::string& directory, std::string_view who) {
  const FileDescriptor dir(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (dir.fd < 0) fail_file(who, "open the directory", directory, errno);
  // Some file systems cannot sync a directory; there is nothing more to do on them.
  if (::fsync(dir.fd) != 0 && errno != EINVAL && errno != EROFS)
    fail_file(who, "sync the directory", directory, errno);
}

bool is_replaceable(const std::string& path, std::string_view who) {
  struct stat old {};
  if (::lstat(path.c_str(), &old) != 0) return false;
  if (S_ISDIR(old.st_mode)) fail_file(who, "write", path, EISDIR);
  if (!S_ISREG(old.st_mode))
    throw Error("[" + std::string(who) + "] cannot write " + path + ": it is a " +
                (S_ISLNK(old.st_mode) ? "symbolic link" : "device, pipe or socket") +
                ", expected a regular file");
  return true;
}

FileDescriptor create_temporary(const std::string& path, std::string& name, std::string_view who) {
  const std::size_t slash = path.rfind('/') + 1;  // 0 if there is none
  static std::atomic<unsigned> serial{0};         // two threads may write the same name
  for (int attempt = 0;; ++attempt) {
    name = path.substr(0, slash) + "." + path.substr(slash) + ".tmp." + std::to_string(::getpid()) + "." +
           std::to_string(serial++);
    // 0666 under the user's umask: a file created by mkstemp would stay readable by its owner alone.
    const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd >= 0) return FileDescriptor(fd);
    // A process with the same id may have been killed, for example in a container.
    if (errno != EEXIST || attempt == 1000) fail_file(who, "create", path, errno);
  }
}

void rename_new(const std::string& from, const std::string& to, std::string_view who) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) fail_file(who, "create", to, errno);
  struct stat there {};  // a file system without this flag
  if (::lstat(to.c_str(), &there) == 0) fail_file(who, "create", to, EEXIST);
  if (::rename(from.c_str(), to.c_str()) != 0) fail_file(who, "create", to, errno);
}

void replace_regular_file(const std::string& path, std::span<const std::string_view> pieces,
                          std::string_view who, Durable durable) {
  struct stat old {};
  const bool exists = is_replaceable(path, who) && ::lstat(path.c_str(), &old) == 0;
  std::string temporary;
  FileDescriptor file = create_temporary(path, temporary, who);
  try {
    for (std::string_view piece : pieces) write_all(file.fd, piece, path, who);
    if (exists && ::fchmod(file.fd, old.st_mode & 07777) != 0)
      fail_file(who, "set the permissions of", path, errno);
    if (durable == Durable::yes && ::fsync(file.fd) != 0) fail_file(who, "write", path, errno);
    close_checked(file.fd, path, who);
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail_file(who, "replace", path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  const std::size_t slash = path.rfind('/');
  if (durable == Durable::yes)
    sync_directory(slash == std::string::npos ? "." : path.substr(0, slash + 1), who);
}

}  // namespace tg
