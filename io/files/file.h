// Reads whole files, and writes files without missing a write error. Messages are one line, "[who] …: path
// …".
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tg::io {

// The whole content of a regular file. Throws Error if it is missing, unreadable or not a regular file,
// OutOfMemory if it does not fit in memory.
std::string read_file(const std::string& path, std::string_view who);

// Replaces the file by the pieces one after another, or leaves it as it was: temporary file in the same
// directory, fsync, rename, fsync of the directory. Keeps the permissions of an existing file and follows a
// symbolic link; writes a device or pipe in place. Throws Error (unwritable directory, full disk,
// short write …).
void replace_file(const std::string& path, std::span<const std::string_view> pieces, std::string_view who);

// Throws the Error of a later replace_file() where it can be foreseen: a missing or unwritable folder, a
// directory in the file's place. Call it before work whose result goes there.
void require_replaceable(const std::string& path, std::string_view who);

// Creates a file of the pieces; the name must be free. The file is on the disk when it returns. Throws Error.
void write_new_file(const std::string& path, std::span<const std::string_view> pieces, std::string_view who);

// Overwrites the first bytes of an existing file. The whole file is on the disk when it returns. Throws
// Error.
void overwrite_start(const std::string& path, std::string_view bytes, std::string_view who);

// Makes the creation, renaming and removal of files in a directory durable. Throws Error.
void sync_directory(const std::string& directory, std::string_view who);

// A file written piece by piece, from empty or after its present content. Every failure throws Error, except
// in the destructor: call close() to learn whether the last bytes arrived.
class OutputFile {
 public:
  enum class Start { empty, append };
  OutputFile(std::string path, std::string_view who, Start start = Start::empty);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view bytes);  // all of them reach the operating system before it returns
  // All of them reach the disk before it returns. Throws Error also if the path names another file by now.
  void sync();
  void close();
  const std::string& path() const { return path_; }

 private:
  std::string path_, who_;
  int fd_ = -1;
};

}  // namespace tg::io
