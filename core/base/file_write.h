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
// The same with the text of an error number, unless that is 0.
void check_file(std::string_view who, const char* verb, const std::string& path, int error);

// Closes a file descriptor; -1 stands for none, which a moved-from one has.
struct FileDescriptor {
  int fd;
  explicit FileDescriptor(int fd) : fd(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
  ~FileDescriptor();
  FileDescriptor& operator=(FileDescriptor&&) = delete;
};

// Makes the creation, renaming and removal of a directory's files durable.
void sync_directory(const std::string& directory, std::string_view who);

// Whether a file must have reached the disk when a call returns. A cache does without: it need only be whole.
enum class Durable { no, yes };

// Creates a file with a new name, ".NAME.tmp.PID.N", in the folder of `path`, and sets `name` to it. Links
// are not followed.
FileDescriptor create_temporary(const std::string& path, std::string& name, std::string_view who);

// Replaces a regular file by the pieces, one after another, or leaves it unchanged: a temporary file in the
// same directory, then a rename. Keeps the permissions of an existing file. Throws Error if the path names a
// symbolic link or another file that is not regular.
void replace_regular_file(const std::string& path, std::span<const std::string_view> pieces,
                          std::string_view who, Durable durable);

// Whether something has the name, such as a symbolic link that leads nowhere.
bool is_taken(const std::string& path);

// The folder of a file, with a slash at the end, or "." if the path does not name one.
std::string folder_of(const std::string& path);

// Throws Error, "[who] cannot write PATH: it is a …", if the path names something that is not a regular file,
// such as a symbolic link. Returns whether it exists.
bool is_replaceable(const std::string& path, std::string_view who);

}  // namespace tg
