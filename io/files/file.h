// Reads whole files and writes files, with every write error reported. Error messages are one line: "[who] …:
// path …".
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tg::io {

// Returns the whole content of a regular file. Throws Error if it is missing, unreadable or not a regular
// file, and OutOfMemory if it does not fit into memory. Here and below, `who` begins the error message.
std::string read_file(const std::string& path, std::string_view who);

// Replaces the file with the concatenated pieces, completely or not at all. Writes a temporary file in the
// same directory, syncs it to disk, renames it and syncs the directory. Keeps the permissions of an existing
// file. A device in /dev and a stream of the process, such as /dev/stdout, are written in place. Throws Error
// if writing fails (unwritable directory, full disk, short write …), and for a symbolic link, a pipe or a
// socket.
void replace_file(const std::string& path, std::span<const std::string_view> pieces, std::string_view who);

// How require_replaceable() treats an existing file.
enum class Existing {
  replace,  // accept it
  refuse    // throw an Error that names --overwrite
};

// Throws an Error if it is already known that replace_file() will fail. Examples are a missing or unwritable
// folder, and a symbolic link or a pipe at the path. Call it before the work whose result is written to
// `path`.
void require_replaceable(const std::string& path, std::string_view who,
                         Existing existing = Existing::replace);

// Creates a file with the concatenated pieces and syncs it to disk before it returns. Throws Error if the
// file exists or cannot be written.
void write_new_file(const std::string& path, std::span<const std::string_view> pieces, std::string_view who);

// Overwrites the first bytes of an existing file and syncs the whole file to disk before it returns. Throws
// Error if the file does not exist or cannot be written.
void overwrite_start(const std::string& path, std::string_view bytes, std::string_view who);

// Makes creations, renames and removals of files in a directory durable (fsync). Throws Error if that fails.
void sync_directory(const std::string& directory, std::string_view who);

// A file written piece by piece. It is a new file that replaces an existing regular file, or an existing file
// to which bytes are appended. Symbolic links are not followed. Every failure throws Error, except in the
// destructor: call close() to learn whether all bytes were written.
class OutputFile {
 public:
  // Where writing begins.
  enum class Start {
    empty,  // in a new file, which replaces an existing one
    append  // at the end of an existing file, or in a new file
  };
  // Opens the file. Throws Error if it cannot be created or the path is not a regular file, device or stream.
  OutputFile(std::string path, std::string_view who, Start start = Start::empty);
  // Closes the file and ignores errors.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Passes all bytes to the operating system before it returns. Throws Error if that fails.
  void write(std::string_view bytes);
  // Waits until all bytes are on disk. Throws Error if that fails, or if the path now names a different file.
  void sync();
  // Closes the file. Later calls do nothing. Throws Error if the operating system reports a write error.
  void close();
  // The path as given to the constructor.
  const std::string& path() const { return path_; }

 private:
  std::string path_, who_;
  int fd_ = -1;
};

}  // namespace tg::io
