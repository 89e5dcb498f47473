// A file mapped into memory: only the pages that are accessed are read, and many processes share them.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace tg::io {

class MappedFile {
 public:
  // Throws Error, "[who] …: path …", if the file is missing, empty, not a regular file or cannot be mapped.
  // If the file is truncated while it is mapped, reading the missing part kills the process.
  MappedFile(const std::string& path, std::string_view who);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  std::string_view bytes() const {
    return {data_, size_};
  }  // at an address that is a multiple of the page size
  // Bytes that are not needed any more: their pages leave this process's memory. Later reads find them again.
  void release(std::size_t offset, std::size_t bytes) const;
  // Copies bytes of the file, which then need no pages of this process: cheaper than to read them in bytes()
  // once. Throws Error if the file does not have them or cannot be read. From any thread.
  void read(std::size_t offset, std::span<std::byte> to) const;

 private:
  const char* data_ = nullptr;
  std::size_t size_ = 0;
  int descriptor_ = -1;
  std::string path_, who_;
};

}  // namespace tg::io
