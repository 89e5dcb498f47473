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

// Replaces the file by the pieces one after another, or leaves it unchanged: temporary file in the same
// directory, fsync, rename, fsync of the directory. Keeps the permissions of an existing file. A device in
// /dev and a stream of the process, such as /dev/stdout, are written in place. Throws Error (unwritable
// directory, full disk, short write …), and for a symbolic link, a pipe or a socket.
void replace_file(const std::string& path, std::span<const std::string_view> pieces, std::string_view who);

enum class Existing { replace, refuse };

// Throws the Error of a later replace_file() that can be foreseen: a missing or unwritable folder, or
// something at the path that it would not replace. With Existing::refuse, an existing file is an Error that
// names --overwrite. Call it before work whose result is written there.
void require_replaceable(const std::string& path, std::string_view who,
                         Existing existing = Existing::replace);

// Creates a file of the pieces; the name must be free. The file is on the disk when it returns. Throws Error.
void write_new_file(const std::string& path, std::span<const std::string_view> pieces, std::string_view who);

// Overwrites the first bytes of an existing file. The whole file is on the disk when it returns. Throws
// Error.
void overwrite_start(const std::string& path, std::string_view bytes, std::string_view who);

// Makes the creation, renaming and removal of files in a directory durable. Throws Error.
void sync_directory(const std::string& directory, std::string_view who);

// A file written piece by piece: a new one, which replaces an existing regular file, or after its present
// content. Symbolic links are not followed. Every failure throws Error, except in the destructor: call
// close() to learn whether the last bytes arrived.
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
