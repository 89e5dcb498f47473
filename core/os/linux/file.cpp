#include "core/os/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace tg::os {
namespace {

// In the order of Open. Without O_NONBLOCK, opening a pipe would wait for a writer.
constexpr int open_flags[] = {O_RDONLY | O_NONBLOCK,
                              O_RDONLY | O_DIRECTORY,
                              O_RDONLY | O_DIRECTORY | O_NOFOLLOW,
                              O_WRONLY | O_NOFOLLOW,
                              O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW,
                              O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY | O_NOFOLLOW,
                              O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY | O_NOFOLLOW | O_EXCL,
                              O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY};

int error_unless(bool is_done) {
  return is_done ? 0 : errno;
}

FileStatus status_of(bool is_found, const struct stat& s) {
  if (!is_found) return {.error = errno};
  return {.is_regular = S_ISREG(s.st_mode),
          .is_folder = S_ISDIR(s.st_mode),
          .is_trusted = s.st_uid == ::geteuid() || s.st_uid == 0,
          .permissions = std::filesystem::perms(s.st_mode) & std::filesystem::perms::mask,
          .size = static_cast<std::uint64_t>(s.st_size),
          .id = {s.st_dev, s.st_ino}};
}

}  // namespace

Opened open(const std::string& path, Open how, int folder) {
  const int flags = open_flags[static_cast<int>(how)] | O_CLOEXEC;
  const int fd = folder < 0 ? ::open(path.c_str(), flags, 0666) : ::openat(folder, path.c_str(), flags, 0666);
  return {FileDescriptor(fd), error_unless(fd >= 0)};
}

std::pair<std::size_t, int> read_at(int file, std::uint64_t offset, std::span<std::byte> to) {
  std::size_t used = 0;
  while (used < to.size()) {
    const ssize_t n = ::pread(file, to.data() + used, to.size() - used, static_cast<off_t>(offset + used));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return {used, error_unless(n == 0)};
    used += static_cast<std::size_t>(n);
  }
  return {used, 0};
}

int write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return ENOSPC;  // no progress and no reason: do not loop for ever
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return 0;
}

int sync(int file) {
  return error_unless(::fsync(file) == 0);
}

int sync_if_possible(int file) {
  const int error = sync(file);
  return error == EINVAL || error == EROFS ? 0 : error;
}

int close(int file) {
  return error_unless(::close(file) == 0 || errno == EINTR);
}

int set_permissions(int file, std::filesystem::perms permissions) {
  return error_unless(::fchmod(file, static_cast<mode_t>(permissions)) == 0);
}

int rename_new(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  struct stat there {};  // a file system without this flag
  if (::lstat(to.c_str(), &there) == 0) return EEXIST;
  return error_unless(::rename(from.c_str(), to.c_str()) == 0);
}

int remove(const std::string& path) {
  return error_unless(::unlink(path.c_str()) == 0);
}

int check_writable(const std::string& path, bool is_folder) {
  return error_unless(::access(path.c_str(), is_folder ? W_OK | X_OK : W_OK) == 0);
}

bool try_lock(int file) {
  return ::flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

std::string temporary_name(const std::string& path) {
  const std::size_t slash = path.rfind('/') + 1;  // 0 if there is none
  static std::atomic<unsigned> serial{0};         // two threads may write the same name
  return path.substr(0, slash) + "." + path.substr(slash) + ".tmp." + std::to_string(::getpid()) + "." +
         std::to_string(serial++);
}

FileStatus status(int file) {
  struct stat s {};
  return status_of(::fstat(file, &s) == 0, s);
}

FileStatus status(const std::string& path) {
  struct stat s {};
  return status_of(::stat(path.c_str(), &s) == 0, s);
}

}  // namespace tg::os
