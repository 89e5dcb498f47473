// Writing files with POSIX calls. Each failure is an Error of one line, "[who] cannot write PATH: reason".
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace tg {

[[noreturn]] void fail_file(std::string_view who, const char* verb, const std::string& path, int error);

// Closes a file descriptor; -1 stands for none, which a moved-from one has.
struct FileDescriptor {
  int fd;
  explicit FileDescriptor(int fd) : fd(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
  ~FileDescriptor();
  FileDescriptor& operator=(FileDescriptor&&) = delete;
};

void write_all(int fd, std::string_view bytes, const std::string& path, std::string_view who);
// Closes fd and sets it to -1. A network file system or a quota may report only here that data did not
// arrive.
void close_checked(int& fd, const std::string& path, std::string_view who);

// Makes the creation, renaming and removal of a directory's files durable.
void sync_directory(const std::string& directory, std::string_view who);

// Whether a file must have reached the disk when a call returns. A cache does without: it need only be whole.
enum class Durable { no, yes };

// Replaces a regular file by the pieces, one after another, or leaves it as it was: a temporary file in the
// same directory, then a rename. Keeps the permissions of an existing file and follows a symbolic link.
void replace_regular_file(const std::string& path, std::span<const std::string_view> pieces,
                          std::string_view who, Durable durable);

}  // namespace tg
