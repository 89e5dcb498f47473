// A file read through the page cache: only what is touched is read, and many processes share it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tg::io {

class MappedFile {
 public:
  // Throws Error, "[who] …: path …", when it is missing, empty, no regular file or cannot be mapped. A file
  // that is cut short while it is mapped ends the process when what was cut off is read.
  MappedFile(const std::string& path, std::string_view who);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  std::string_view bytes() const {
    return {data_, size_};
  }  // at an address that is a multiple of the page size

 private:
  const char* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tg::io
