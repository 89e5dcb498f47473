#include <tilegrad/io/files/mapped_file.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include <tilegrad/core/base/error.h>

namespace tg::io {

MappedFile::MappedFile(const std::string& path, std::string_view who) {
  const auto refuse = [&](const std::string& why) {
    throw Error("[" + std::string(who) + "] cannot read " + path + ": " + why);
  };
  const auto reason = [] { return std::generic_category().message(errno); };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) refuse(reason());
  struct stat info {};
  std::string fault;
  if (::fstat(fd, &info) != 0) {
    fault = reason();
  } else if (!S_ISREG(info.st_mode)) {
    fault = "not a regular file";
  } else if (info.st_size == 0) {
    fault = "it is empty";
  } else {
    size_ = static_cast<std::size_t>(info.st_size);
    void* at = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED) fault = reason();
    data_ = static_cast<const char*>(at);
  }
  ::close(fd);
  if (!fault.empty()) refuse(fault);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

}  // namespace tg::io
