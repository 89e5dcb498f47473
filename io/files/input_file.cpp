#include "io/files/input_file.h"

#include <cerrno>
#include <new>
#include <stdexcept>
#include <utility>

#include <tilegrad/core/base/error.h>

namespace tg::io {

InputFile::InputFile(const std::string& path, std::string_view who)
    : InputFile(os::open(path, os::Open::read), path, who) {}

std::optional<InputFile> InputFile::in(int directory, const std::string& name, const std::string& path,
                                       std::string_view who) {
  os::Opened opened = os::open(name, os::Open::read, directory);
  if (opened.error == ENOENT) return std::nullopt;
  return InputFile(std::move(opened), path, who);
}

InputFile::InputFile(os::Opened opened, std::string path, std::string_view who)
    : file_(std::move(opened.file)), path_(std::move(path)), who_(who) {
  check_file(who_, "read", path_, opened.error);
  const os::FileStatus now = status();
  check_file(who_, "read", path_, now.is_folder ? EISDIR : 0);
  if (!now.is_regular) fail("not a regular file");
  size_ = now.size;
}

os::FileStatus InputFile::status() const {
  const os::FileStatus now = os::status(file_.fd);
  check_file(who_, "read", path_, now.error);
  return now;
}

std::size_t InputFile::read_at(std::uint64_t offset, std::span<std::byte> to) const {
  const auto [bytes, error] = os::read_at(file_.fd, offset, to);
  check_file(who_, "read", path_, error);
  return bytes;
}

std::string InputFile::read() const {
  std::string content;
  try {
    std::size_t used = 0;
    // Adds a byte, so that the first read detects the end of the file.
    content.resize(static_cast<std::size_t>(size_) + 1);
    for (;;) {
      used += read_at(used, std::as_writable_bytes(std::span(content).subspan(used)));
      if (used < content.size()) break;
      content.resize(2 * used + (1 << 16));  // the file is growing
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
