// Reading and atomic writing with POSIX file descriptors, because each of their calls returns its error.
#include <tilegrad/io/files/file.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <tilegrad/core/base/error.h>
#include "core/base/file_write.h"
#include "io/files/input_file.h"

namespace tg::io {
namespace {

// fsync fails on a device or a pipe, which has no disk to reach; that is no error.
void sync_checked(int fd, const std::string& path, std::string_view who) {
  if (::fsync(fd) != 0 && errno != EINVAL && errno != EROFS) fail_file(who, "write", path, errno);
}

}  // namespace

void sync_directory(const std::string& directory, std::string_view who) {
  tg::sync_directory(directory, who);
}

void write_new_file(const std::string& path, std::span<const std::string_view> pieces, std::string_view who) {
  // 0666 under the user's umask: a file created by mkstemp would stay readable by its owner alone.
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (file.fd < 0) fail_file(who, "create", path, errno);
  for (std::string_view piece : pieces) write_all(file.fd, piece, path, who);
  if (::fsync(file.fd) != 0) fail_file(who, "write", path, errno);
  close_checked(file.fd, path, who);
}

void overwrite_start(const std::string& path, std::string_view bytes, std::string_view who) {
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
  if (file.fd < 0) fail_file(who, "open", path, errno);
  write_all(file.fd, bytes, path, who);
  sync_checked(file.fd, path, who);
  close_checked(file.fd, path, who);
}

std::string read_file(const std::string& path, std::string_view who) {
  return InputFile(path, who).read();
}

namespace {

// Names of the process's own streams, and devices such as /dev/null: written in place. Nothing is replaced
// there.
bool is_stream(const std::string& path) {
  struct stat named {};
  if (path == "/dev/stdout" || path == "/dev/stderr" || path.starts_with("/dev/fd/") ||
      path.starts_with("/proc/self/fd/"))
    return ::stat(path.c_str(), &named) == 0 && !S_ISDIR(named.st_mode);
  return path.starts_with("/dev/") && ::lstat(path.c_str(), &named) == 0 && S_ISCHR(named.st_mode);
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

}  // namespace

void require_replaceable(const std::string& path, std::string_view who, Existing existing) {
  const bool in_place = is_stream(path), exists = !in_place && is_replaceable(path, who);
  if (exists && existing == Existing::refuse)
    throw Error("[" + std::string(who) + "] " + path + " exists: --overwrite replaces it");
  if (::access((in_place ? path : folder_of(path)).c_str(), in_place ? W_OK : W_OK | X_OK) != 0)
    fail_file(who, "write", path, errno);
}

void replace_file(const std::string& path, std::span<const std::string_view> pieces, std::string_view who) {
  if (!is_stream(path)) return replace_regular_file(path, pieces, who, Durable::yes);
  OutputFile out(path, who, OutputFile::Start::append);
  for (std::string_view piece : pieces) out.write(piece);
  out.close();
}

OutputFile::OutputFile(std::string path, std::string_view who, Start start)
    : path_(std::move(path)), who_(who) {
  int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY;
  if (!is_stream(path_)) {
    flags |= O_NOFOLLOW;
    // A new file, so that another name of the old one keeps its content.
    const bool exists = is_replaceable(path_, who_);
    if (exists && start == Start::empty && ::unlink(path_.c_str()) != 0)
      fail_file(who_, "replace", path_, errno);
    if (!exists || start == Start::empty) flags |= O_EXCL;
  }
  fd_ = ::open(path_.c_str(), flags, 0666);
  if (fd_ < 0) fail_file(who_, "create", path_, errno);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void OutputFile::write(std::string_view bytes) {
  write_all(fd_, bytes, path_, who_);
}

void OutputFile::sync() {
  sync_checked(fd_, path_, who_);
  using Status = struct stat;
  Status open{}, named{};  // an inode of 0 is none
  if (::fstat(fd_, &open) != 0) fail_file(who_, "write", path_, errno);
  const bool found = ::stat(path_.c_str(), &named) == 0;
  if (open.st_dev != named.st_dev || open.st_ino != named.st_ino)
    throw Error("[" + who_ + "] " + path_ + (found ? " was replaced" : " was removed") +
                " while it was being written: what is written now is lost");
}

void OutputFile::close() {
  if (fd_ >= 0) close_checked(fd_, path_, who_);
}

}  // namespace tg::io
