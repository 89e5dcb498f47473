// Reading and atomic writing on POSIX file descriptors, where each error is a return value.
#include <tilegrad/io/files/file.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <tilegrad/core/base/error.h>

namespace tg::io {
namespace {

[[noreturn]] void fail(std::string_view who, const char* verb, const std::string& path, int error) {
  throw Error("[" + std::string(who) + "] cannot " + verb + " " + path + ": " +
              std::generic_category().message(error));
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

void write_all(int fd, std::string_view bytes, const std::string& path, std::string_view who) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(who, "write", path, errno);
    if (n == 0) fail(who, "write", path, ENOSPC);  // no progress and no reason: never loop for ever
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

// close() may be where a network file system or a quota first says that the data did not arrive.
void close_checked(int& fd, const std::string& path, std::string_view who) {
  if (::close(std::exchange(fd, -1)) != 0 && errno != EINTR) fail(who, "write", path, errno);
}

// A device or a pipe has no disk to reach and says so.
void sync_checked(int fd, const std::string& path, std::string_view who) {
  if (::fsync(fd) != 0 && errno != EINVAL && errno != EROFS) fail(who, "write", path, errno);
}

}  // namespace

void sync_directory(const std::string& directory, std::string_view who) {
  const Descriptor dir{::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (dir.fd < 0) fail(who, "open the directory", directory, errno);
  // Some file systems cannot sync a directory; there is nothing more to do on them.
  if (::fsync(dir.fd) != 0 && errno != EINVAL && errno != EROFS)
    fail(who, "sync the directory", directory, errno);
}

void write_new_file(const std::string& path, std::span<const std::string_view> pieces, std::string_view who) {
  // 0666 under the user's umask: a file made by mkstemp would stay readable by its owner alone.
  Descriptor file{::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)};
  if (file.fd < 0) fail(who, "create", path, errno);
  for (std::string_view piece : pieces) write_all(file.fd, piece, path, who);
  if (::fsync(file.fd) != 0) fail(who, "write", path, errno);
  close_checked(file.fd, path, who);
}

void overwrite_start(const std::string& path, std::string_view bytes, std::string_view who) {
  Descriptor file{::open(path.c_str(), O_WRONLY | O_CLOEXEC)};
  if (file.fd < 0) fail(who, "open", path, errno);
  write_all(file.fd, bytes, path, who);
  sync_checked(file.fd, path, who);
  close_checked(file.fd, path, who);
}

std::string read_file(const std::string& path, std::string_view who) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) fail(who, "read", path, errno);
  struct stat info;
  if (::fstat(file.fd, &info) != 0) fail(who, "read", path, errno);
  if (S_ISDIR(info.st_mode)) fail(who, "read", path, EISDIR);
  std::string content;
  try {
    std::size_t used = 0;
    content.resize(static_cast<std::size_t>(info.st_size) + 1);  // one more, so that the end is seen at once
    for (;;) {
      if (used == content.size()) content.resize(2 * used + (1 << 16));  // a pipe, or a file that grows
      const ssize_t n = ::read(file.fd, content.data() + used, content.size() - used);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail(who, "read", path, errno);
      if (n == 0) break;
      used += static_cast<std::size_t>(n);
    }
    content.resize(used);
  } catch (const std::bad_alloc&) {
    throw OutOfMemory("[" + std::string(who) + "] " + path + " does not fit in memory: got " +
                      std::to_string(info.st_size) + " bytes");
  } catch (const std::length_error&) {
    throw OutOfMemory("[" + std::string(who) + "] " + path + " does not fit in memory");
  }
  return content;
}

void replace_file(const std::string& path, std::span<const std::string_view> pieces, std::string_view who) {
  struct stat old;
  const bool exists = ::stat(path.c_str(), &old) == 0;
  if (exists && S_ISDIR(old.st_mode)) fail(who, "write", path, EISDIR);
  if (exists && !S_ISREG(old.st_mode)) {
    OutputFile out(path, who);
    for (std::string_view piece : pieces) out.write(piece);
    out.close();
    return;
  }
  std::string target = path;
  if (exists) {
    char* real = ::realpath(path.c_str(), nullptr);
    if (real == nullptr) fail(who, "write", path, errno);
    target = real;
    std::free(real);
  }
  const std::size_t slash = target.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : slash == 0 ? "/" : target.substr(0, slash);
  const std::string name = slash == std::string::npos ? target : target.substr(slash + 1);
  static std::atomic<unsigned> serial{0};  // two threads may write the same name
  const std::string temporary =
      directory + "/." + name + ".tmp." + std::to_string(::getpid()) + "." + std::to_string(serial++);

  // 0666 under the user's umask: a file made by mkstemp would stay readable by its owner alone.
  Descriptor file{::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)};
  if (file.fd < 0) fail(who, "create", path, errno);
  try {
    for (std::string_view piece : pieces) write_all(file.fd, piece, path, who);
    if (exists && ::fchmod(file.fd, old.st_mode & 07777) != 0)
      fail(who, "set the permissions of", path, errno);
    if (::fsync(file.fd) != 0) fail(who, "write", path, errno);
    close_checked(file.fd, path, who);
    if (::rename(temporary.c_str(), target.c_str()) != 0) fail(who, "replace", path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_directory(directory, who);
}

OutputFile::OutputFile(std::string path, std::string_view who, Start start)
    : path_(std::move(path)), who_(who) {
  const int truncate = start == Start::empty ? O_TRUNC : 0;
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | truncate | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) fail(who_, "create", path_, errno);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void OutputFile::write(std::string_view bytes) {
  write_all(fd_, bytes, path_, who_);
}

void OutputFile::sync() {
  sync_checked(fd_, path_, who_);
}

void OutputFile::close() {
  if (fd_ >= 0) close_checked(fd_, path_, who_);
}

}  // namespace tg::io
