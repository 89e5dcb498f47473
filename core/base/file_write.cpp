#include "core/base/file_write.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
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

void replace_regular_file(const std::string& path, std::span<const std::string_view> pieces,
                          std::string_view who, Durable durable) {
  struct stat old;
  const bool exists = ::stat(path.c_str(), &old) == 0;
  std::string target = path;
  if (exists) {
    char* real = ::realpath(path.c_str(), nullptr);
    if (real == nullptr) fail_file(who, "write", path, errno);
    target = real;
    std::free(real);
  }
  const std::size_t slash = target.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : slash == 0 ? "/" : target.substr(0, slash);
  const std::string name = slash == std::string::npos ? target : target.substr(slash + 1);
  static std::atomic<unsigned> serial{0};  // two threads may write the same name
  const std::string temporary =
      directory + "/." + name + ".tmp." + std::to_string(::getpid()) + "." + std::to_string(serial++);

  // 0666 under the user's umask: a file created by mkstemp would stay readable by its owner alone.
  FileDescriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.fd < 0) fail_file(who, "create", path, errno);
  try {
    for (std::string_view piece : pieces) write_all(file.fd, piece, path, who);
    if (exists && ::fchmod(file.fd, old.st_mode & 07777) != 0)
      fail_file(who, "set the permissions of", path, errno);
    if (durable == Durable::yes && ::fsync(file.fd) != 0) fail_file(who, "write", path, errno);
    close_checked(file.fd, path, who);
    if (::rename(temporary.c_str(), target.c_str()) != 0) fail_file(who, "replace", path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  if (durable == Durable::yes) sync_directory(directory, who);
}

}  // namespace tg
