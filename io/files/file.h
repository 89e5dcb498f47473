// Whole files in, and files out whose every write error is seen. Messages are one line, "[who] …: path …".
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tg::io {

// The whole content of a file. Throws Error when it is missing, a directory or unreadable, OutOfMemory when
// it does not fit.
std::string read_file(const std::string& path, std::string_view who);

// Replaces the file by the pieces one after another, or leaves it as it was: temporary file in the same
// directory, fsync, rename, fsync of the directory. Permissions of a file that exists are kept and a symbolic
// link is followed; a device or pipe is written in place. Throws Error (unwritable directory, full disk,
// short write …).
void replace_file(const std::string& path, std::span<const std::string_view> pieces, std::string_view who);

// Makes a file of the pieces, on the disk when it returns; the name must be free. Throws Error.
void write_new_file(const std::string& path, std::span<const std::string_view> pieces, std::string_view who);

// Writes over the first bytes of a file that is there; on the disk, with all of the file, when it returns.
// Throws Error.
void overwrite_start(const std::string& path, std::string_view bytes, std::string_view who);

// Flushes a directory to disk: files created, renamed or removed there stay so. Throws Error.
void sync_directory(const std::string& directory, std::string_view who);

// A file written piece by piece, from empty or after what it has. Every failure throws Error; the destructor
// alone is silent, so that close() is the last call of a writer that must know.
class OutputFile {
 public:
  enum class Start { empty, append };
  OutputFile(std::string path, std::string_view who, Start start = Start::empty);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view bytes);  // all of them reach the operating system before it returns
  void sync();                         // all of them reach the disk before it returns
  void close();
  const std::string& path() const { return path_; }

 private:
  std::string path_, who_;
  int fd_ = -1;
};

}  // namespace tg::io
