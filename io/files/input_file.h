// A regular file that is open for reading. All readers of files use it.
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
  // a device or a pipe. Devices and pipes are rejected because they may be endless or block.
  InputFile(const std::string& path, std::string_view who);
  // Opens a file in an open directory, or returns nothing if it does not exist. `path` is for messages.
  static std::optional<InputFile> in(int directory, const std::string& name, const std::string& path,
                                     std::string_view who);
  int descriptor() const { return file_.fd; }
  std::uint64_t size() const { return size_; }  // when it was opened
  os::FileStatus status() const;                // now; throws Error
  // Reads until `to` is full or the file ends, and returns the number of bytes. Throws Error if reading
  // fails.
  std::size_t read_at(std::uint64_t offset, std::span<std::byte> to) const;
  // Reads the complete file. Throws Error if that fails, and OutOfMemory if the file does not fit into
  // memory.
  std::string read() const;
  [[noreturn]] void fail(const std::string& why) const { fail_file(who_, "read", path_, why); }

 private:
  InputFile(os::Opened opened, std::string path, std::string_view who);
  FileDescriptor file_;
  std::uint64_t size_ = 0;
  std::string path_, who_;
};

}  // namespace tg::io
