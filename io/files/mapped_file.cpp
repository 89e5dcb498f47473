#include <tilegrad/io/files/mapped_file.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <tilegrad/core/base/error.h>
#include "core/base/file_write.h"
#include "io/files/input_file.h"

namespace tg::io {

MappedFile::MappedFile(const std::string& path, std::string_view who) {
  const InputFile file(path, who);
  if (file.size() == 0) throw Error("[" + std::string(who) + "] cannot read " + path + ": it is empty");
  void* at =
      ::mmap(nullptr, static_cast<std::size_t>(file.size()), PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (at == MAP_FAILED) fail_file(who, "read", path, errno);
  data_ = static_cast<const char*>(at);
  size_ = static_cast<std::size_t>(file.size());
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

void MappedFile::release(std::size_t offset, std::size_t bytes) const {
  if (offset > size_ || bytes > size_ - offset) return;
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t first = (offset + page - 1) / page * page, last = (offset + bytes) / page * page;
  if (first < last) ::madvise(const_cast<char*>(data_) + first, last - first, MADV_DONTNEED);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

}  // namespace tg::io
