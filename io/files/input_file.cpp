#include "io/files/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <stdexcept>
#include <utility>

#include <tilegrad/core/base/error.h>
#include "core/base/file_write.h"

namespace tg::io {

// Without O_NONBLOCK, opening a pipe would wait for a writer.
constexpr int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;

InputFile::InputFile(const std::string& path, std::string_view who)
    : InputFile(::open(path.c_str(), flags), path, who) {}

std::optional<InputFile> InputFile::in(int directory, const std::string& name, const std::string& path,
                                       std::string_view who) {
  const int fd = ::openat(directory, name.c_str(), flags);
  if (fd < 0 && errno == ENOENT) return std::nullopt;
  return InputFile(fd, path, who);
}

InputFile::InputFile(int fd, std::string path, std::string_view who)
    : file_(fd), path_(std::move(path)), who_(who) {
  if (fd < 0) fail_file(who_, "read", path_, errno);
  struct stat info {};
  if (::fstat(fd, &info) != 0) fail_file(who_, "read", path_, errno);
  if (S_ISDIR(info.st_mode)) fail_file(who_, "read", path_, EISDIR);
  if (!S_ISREG(info.st_mode)) throw Error("[" + who_ + "] cannot read " + path_ + ": not a regular file");
  size_ = static_cast<std::uint64_t>(info.st_size);
}

std::string InputFile::read() const {
  std::string content;
  try {
    std::size_t used = 0;
    content.resize(static_cast<std::size_t>(size_) + 1);  // one more, so that the first read finds the end
    for (;;) {
      if (used == content.size()) content.resize(2 * used + (1 << 16));  // a file that grows
      const ssize_t n =
          ::pread(file_.fd, content.data() + used, content.size() - used, static_cast<off_t>(used));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail_file(who_, "read", path_, errno);
      if (n == 0) break;
      used += static_cast<std::size_t>(n);
    }
    content.resize(used);
  } catch (const std::bad_alloc&) {
    throw OutOfMemory("[" + who_ + "] " + path_ + " does not fit in memory: got " + std::to_string(size_) +
                      " bytes");
  } catch (const std::length_error&) {
    throw OutOfMemory("[" + who_ + "] " + path_ + " does not fit in memory");
  }
  return content;
}

}  // namespace tg::io
