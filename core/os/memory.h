// Memory that the system gives, and memory that several processes map. Such shared memory is a file. Each
// process has a descriptor of it, which the caller closes. An error is a number of <cerrno>, or 0 without an
// error; std::strerror() has its text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tg::os {

// How many more bytes this process can get: the least of the machine's available memory, the memory that the
// process's control groups leave (containers), and the rest of its address space limit (ulimit -v). SIZE_MAX
// if none of them is known.
std::size_t available_memory();

// Requests large pages for this memory, if the system has them.
void prefer_huge_pages(void* memory, std::size_t bytes);

struct SharedFile {
  int descriptor = -1;  // −1: none
  int error = 0;
  std::size_t bytes = 0;
  std::uint64_t number = 0;  // the system's, by which the file is recognized
};

// A new file of zeros which no other process can find by a name, and which cannot get another size. `title`
// is for people who look at the process.
SharedFile new_shared_memory(const char* title, std::size_t bytes);

// Whether the file is one that new_shared_memory() made, and has that size.
bool is_shared_memory(int descriptor, std::size_t bytes);

// The path by which other processes of this user open that file of the process. It may be a different file
// when the process has ended.
std::string path_of_descriptor(int process, int descriptor);
// The file of such a path. None if it is not one that new_shared_memory() made, with that size.
SharedFile open_shared_memory(const std::string& path, std::size_t bytes);
bool has_file(const std::string& path, std::uint64_t number);  // whether the path is that of this file

// The file of the program that this process runs.
SharedFile open_own_program();

// Maps a file, so that other processes see what this one writes.
int map_shared(int descriptor, std::size_t bytes, void*& memory);
int map_read_only(int descriptor, std::size_t bytes, void*& memory);
void unmap(void* memory, std::size_t bytes);

}  // namespace tg::os
