// A file mapped into memory: only accessed pages are read, and processes share them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tg::io {

// A read-only mapping of a whole file. A file may be truncated while it is mapped, or its disk may fail.
// Reading a lost page then gives zeros, and check() throws. For this, the first mapping of a process installs
// a SIGBUS handler. It passes faults at other addresses to the previously installed handler. If the program
// installs a different handler later, that handler should pass unexpected faults to this one.
class MappedFile {
 public:
  // Maps the file. Throws Error, "[who] …: path …", if it is missing, empty, not a regular file or cannot be
  // mapped.
  MappedFile(const std::string& path, std::string_view who);
  // Leaves `other` without a mapping.
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  // The file's content, at a page-aligned address; empty after a move.
  std::string_view bytes() const { return bytes_; }
  // Throws Error if the file has become shorter since it was mapped, or if a page could not be read. Call it
  // before a result that depends on bytes() is used or reported. Thread-safe.
  void check() const {
    if (pages_) pages_->check();
  }
  // Drops the pages of a byte range, which is no longer needed, from this process's memory. Later accesses
  // read them again. Does nothing if the range is outside the file.
  void release(std::size_t offset, std::size_t bytes) const;
  // Copies bytes of the file without mapping pages. If each byte is read only once, this is cheaper than
  // bytes(). Throws Error if the range is outside the file, if the file cannot be read, or if the object was
  // moved from. Thread-safe.
  void read(std::size_t offset, std::span<std::byte> to) const;

  // The mapping's state, for a view that may outlive a move of this object.
  class Pages {
   public:
    // Unmaps the file when the last owner is destroyed.
    virtual ~Pages() = default;
    // Does the same as MappedFile::check().
    virtual void check() const = 0;
  };
  // The shared state of the mapping; null after a move.
  std::shared_ptr<const Pages> pages() const { return pages_; }

 private:
  std::shared_ptr<const Pages> pages_;  // the mapping and the open file; null after a move
  std::string_view bytes_;
};

}  // namespace tg::io
