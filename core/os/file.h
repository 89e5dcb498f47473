// Opens files, maps files into memory, and creates names of files. An `error` is an error number of <cerrno>,
// or 0. In core/base/file_write.h, check_file() throws such a number as an Error, and FileDescriptor closes a
// file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/file_write.h"

namespace tg::os {

enum class Open {
  read,           // does not wait for the writer of a pipe
  folder,         // a folder, for functions with an open folder
  folder_itself,  // a folder, but not through a symbolic link
  // For writing, but not through a symbolic link:
  existing,
  create,      // under a new name
  append,      // after the existing content, if the file exists
  append_new,  // under a new name
  // For writing to a device or a stream of the process, also through a symbolic link:
  append_stream
};
struct Opened {
  FileDescriptor file;
  int error;
};
// If `folder` is given, a relative path starts in that open folder. New files have the permissions 0666 under
// the user's umask. Child processes do not inherit open files.
Opened open(const std::string& path, Open how, int folder = -1);

// Reads until `to` is full or the file ends. Returns the number of bytes and an error.
std::pair<std::size_t, int> read_at(int file, std::uint64_t offset, std::span<std::byte> to);

// Each of these returns an error or 0.
int write_all(int file, std::string_view bytes);
int sync(int file);              // waits until the content of a file or folder is on disk
int sync_if_possible(int file);  // 0 also for a device, a pipe, and a folder that the file system cannot sync
int close(int file);             // some file systems report lost data only here
int set_permissions(int file, std::filesystem::perms permissions);
int rename_new(const std::string& from, const std::string& to);  // fails if something has the new name
int remove(const std::string& path);
int check_writable(const std::string& path, bool is_folder);  // for this process

// Returns false if another process has locked the file or folder. The system releases the lock when the file
// is closed or the process ends. On a file system without locks, returns true without a lock.
bool try_lock(int file);

// Returns ".NAME.tmp.PID.N" in the folder of `path`. No other call, in any running process, returns the same
// name.
std::string temporary_name(const std::string& path);

struct FileStatus {
  int error = 0;
  bool is_regular = false, is_folder = false;
  bool is_trusted = false;  // it belongs to the user of this process or to root
  std::filesystem::perms permissions = {};
  std::uint64_t size = 0;
  std::pair<std::uint64_t, std::uint64_t> id = {};  // equal for two names of one file
};
FileStatus status(int file);
FileStatus status(const std::string& path);  // follows symbolic links

// A read-only mapping of a file. If the file is truncated or the disk fails, reading a lost page gives zeros.
// The first mapping of a process installs a SIGBUS handler for this. If a fault occurs at any other address,
// the handler calls the previous handler.
class MappedMemory {
 public:
  MappedMemory() = default;
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  // Maps the first bytes of an open file. Returns an error number of <cerrno> or 0. Call it once.
  int map(int file, std::size_t bytes);
  const char* data() const { return at_; }  // a multiple of the page size
  bool is_part_lost() const;                // whether a page that was read is lost

  struct Range;

 private:
  char* at_ = nullptr;
  std::size_t size_ = 0;
  Range* range_ = nullptr;
};

// Releases the memory of the pages that are completely inside this range of a mapping. Later reads load the
// pages again.
void release_pages(const char* begin, std::size_t bytes);

}  // namespace tg::os
