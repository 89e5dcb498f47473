// A file that is mapped into memory for reading.
#pragma once

#include <cstddef>

namespace tg::os {

// If the file is truncated or its disk fails, reading a lost page gives zeros. The first mapping of a process
// installs a handler of faults for this. It passes a fault at any other address to the handler that was there
// before.
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

// Removes the whole pages of a part of a mapping from this process's memory. Later reads find them again.
void release_pages(const char* begin, std::size_t bytes);

}  // namespace tg::os
