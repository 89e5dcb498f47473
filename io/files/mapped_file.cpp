#include <tilegrad/io/files/mapped_file.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <tilegrad/core/base/error.h>
#include "core/base/file_write.h"
#include "io/files/input_file.h"

namespace tg::io {

MappedFile::MappedFile(const std::string& path, std::string_view who) : path_(path), who_(who) {
  const InputFile file(path, who);
  if (file.size() == 0) throw Error("[" + std::string(who) + "] cannot read " + path + ": it is empty");
  void* at =
      ::mmap(nullptr, static_cast<std::size_t>(file.size()), PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (at == MAP_FAILED) fail_file(who, "read", path, errno);
  data_ = static_cast<const char*>(at);
  size_ = static_cast<std::size_t>(file.size());
  descriptor_ = ::fcntl(file.descriptor(), F_DUPFD_CLOEXEC, 0);
  if (descriptor_ >= 0) return;
  const int error = errno;
  ::munmap(at, size_);
  fail_file(who, "read", path, error);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

void MappedFile::release(std::size_t offset, std::size_t bytes) const {
  if (offset > size_ || bytes > size_ - offset) return;
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t first = (offset + page - 1) / page * page, last = (offset + bytes) / page * page;
  if (first < last) ::madvise(const_cast<char*>(data_) + first, last - first, MADV_DONTNEED);
}

void MappedFile::read(std::size_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t n = ::pread(descriptor_, to.data(), to.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_file(who_, "read", path_, errno);
    if (n == 0)
      throw Error("[" + who_ + "] cannot read " + path_ + ": it ends at byte " + std::to_string(offset));
    to = to.subspan(static_cast<std::size_t>(n)), offset += static_cast<std::size_t>(n);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      path_(std::move(other.path_)),
      who_(std::move(other.who_)) {}

}  // namespace tg::io
