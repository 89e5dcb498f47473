// Memory from the system, and memory that several processes map. Such shared memory is a file. Each process
// has a descriptor of the file, which the caller closes. Errors are numbers of <cerrno>, or 0;
// std::strerror() describes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tg::os {

// Number of bytes that this process can still allocate. It is the minimum of three limits: the available
// memory of the machine, the limits of the process's control groups (containers), and the address space limit
// (ulimit -v). SIZE_MAX if no limit is known.
std::size_t available_memory();

// Requests large pages for this memory, if the system has them.
void prefer_huge_pages(void* memory, std::size_t bytes);

struct SharedFile {
  int descriptor = -1;  // −1: none
  int error = 0;
  std::size_t bytes = 0;
  std::uint64_t number = 0;  // inode number, which identifies the file
};

// Creates a file of zeros. It has no name by which other processes can find it, and it cannot be resized.
// System tools show `title` in the list of the process's files.
SharedFile new_shared_memory(const char* title, std::size_t bytes);

// Whether new_shared_memory() created the file, with that size.
bool is_shared_memory(int descriptor, std::size_t bytes);

// The path by which other processes of this user can open the file. After the process has exited, the path
// may refer to a different file.
std::string path_of_descriptor(int process, int descriptor);
// Opens such a path. The result is empty unless new_shared_memory() created the file with this size.
SharedFile open_shared_memory(const std::string& path, std::size_t bytes);
bool has_file(const std::string& path, std::uint64_t number);  // whether the path refers to this file

// Opens the executable of this process.
SharedFile open_own_program();

// Maps a file so that other processes see the writes of this process.
int map_shared(int descriptor, std::size_t bytes, void*& memory);
int map_read_only(int descriptor, std::size_t bytes, void*& memory);
void unmap(void* memory, std::size_t bytes);

}  // namespace tg::os
