// Writing files. Each failure is an Error of one line, "[who] cannot write PATH: reason".
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace tg {

// Throws Error, "[who] cannot VERB PATH: reason".
[[noreturn]] void fail_file(std::string_view who, const char* verb, const std::string& path,
                            const std::string& reason);
// Calls fail_file() with the description of `error`, an errno value, as the reason. Does nothing if it is 0.
void check_file(std::string_view who, const char* verb, const std::string& path, int error);

// Owns a file descriptor. The destructor closes it. −1 means that the object owns none, for example after a
// move.
struct FileDescriptor {
  int fd;
  explicit FileDescriptor(int fd) : fd(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
  ~FileDescriptor();
  FileDescriptor& operator=(FileDescriptor&&) = delete;
};

// Makes created, renamed and removed files of a directory durable.
void sync_directory(const std::string& directory, std::string_view who);

// Whether a file must be on disk when a call returns. A cache needs only atomicity, not durability.
enum class Durable { no, yes };

// Creates a file with a new name, ".NAME.tmp.PID.N", in the folder of `path`, and sets `name` to it. Symbolic
// links are not followed.
FileDescriptor create_temporary(const std::string& path, std::string& name, std::string_view who);

// Replaces a regular file by the concatenated pieces. If the function fails, the file is unchanged. The
// function writes a temporary file in the same directory and renames it. It keeps the permissions of an
// existing file. Throws Error if the path is a symbolic link or another file that is not regular.
void replace_regular_file(const std::string& path, std::span<const std::string_view> pieces,
                          std::string_view who, Durable durable);

// Whether the path exists, including a dangling symbolic link.
bool is_taken(const std::string& path);

// The folder of a file, with a slash at the end; "." if the path contains no folder.
std::string folder_of(const std::string& path);

// Returns whether the file exists. Throws Error, "[who] cannot write PATH: it is a …", if it is not a regular
// file, for example a symbolic link.
bool is_replaceable(const std::string& path, std::string_view who);

}  // namespace tg
