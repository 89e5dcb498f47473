// A file mapped into memory: only the pages that are accessed are read, and many processes share them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tg::io {

// A file may be truncated while it is mapped, or its disk may fail. Reading a lost page then gives zeros, and
// check() throws. The first mapping of a process installs a handler of SIGBUS for this. It passes a fault at
// any other address to the handler that was there before. A handler that is installed later replaces it and
// should call it for faults that it does not expect.
class MappedFile {
 public:
  // Throws Error, "[who] …: path …", if the file is missing, empty, not a regular file or cannot be mapped.
  MappedFile(const std::string& path, std::string_view who);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  std::string_view bytes() const { return bytes_; }  // at an address that is a multiple of the page size
  // Throws Error if the file has become shorter, or if a page could not be read since it was mapped. Call it
  // before a result of bytes() is used or reported. From any thread.
  void check() const {
    if (pages_) pages_->check();
  }
  // Bytes that are not needed any more: their pages leave this process's memory. Later reads find them again.
  void release(std::size_t offset, std::size_t bytes) const;
  // Copies bytes of the file, which then need no pages of this process: cheaper than to read them in bytes()
  // once. Throws Error if the file does not have them or cannot be read. From any thread.
  void read(std::size_t offset, std::span<std::byte> to) const;

  // check() for a view that may exist when this object has been moved.
  class Pages {
   public:
    virtual ~Pages() = default;
    virtual void check() const = 0;
  };
  std::shared_ptr<const Pages> pages() const { return pages_; }

 private:
  std::shared_ptr<const Pages> pages_;  // the mapping and the open file; none in an object that was moved
  std::string_view bytes_;
};

}  // namespace tg::io
