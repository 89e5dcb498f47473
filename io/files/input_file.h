// A regular file that is open for reading. Whatever reads a file opens it here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/os/file.h"

namespace tg::io {

class InputFile {
 public:
  // Throws Error, "[who] cannot read path: reason", if the file is missing or unreadable, or is a directory,
  // a device or a pipe: those may have no end, or never begin.
  InputFile(const std::string& path, std::string_view who);
  // The file of that name in an open directory, or nothing if there is none. `path` is for messages.
  static std::optional<InputFile> in(int directory, const std::string& name, const std::string& path,
                                     std::string_view who);
  int descriptor() const { return file_.fd; }
  std::uint64_t size() const { return size_; }  // when it was opened
  os::FileStatus status() const;                // now; throws Error
  // Reads until `to` is full or the file ends, and returns the number of bytes. Throws Error.
  std::size_t read_at(std::uint64_t offset, std::span<std::byte> to) const;
  // Throws Error, or OutOfMemory if the content does not fit in memory.
  std::string read() const;
  [[noreturn]] void fail(const std::string& why) const { fail_file(who_, "read", path_, why); }

 private:
  InputFile(os::Opened opened, std::string path, std::string_view who);
  FileDescriptor file_;
  std::uint64_t size_ = 0;
  std::string path_, who_;
};

}  // namespace tg::io
