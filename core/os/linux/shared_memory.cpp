#include "core/os/shared_memory.h"

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file_write.h"

namespace tg::os {

namespace {

int map(int descriptor, std::size_t bytes, int access, int kind, void*& memory) {
  void* const mapped = mmap(nullptr, bytes, access, kind, descriptor, 0);
  if (mapped == MAP_FAILED) return errno;
  memory = mapped;
  return 0;
}

// Takes over the descriptor.
SharedFile opened_file(int descriptor) {
  FileDescriptor file(descriptor);
  struct stat about {};
  if (file.fd < 0 || fstat(file.fd, &about) != 0) return {.error = errno};
  return {std::exchange(file.fd, -1), 0, static_cast<std::size_t>(about.st_size), about.st_ino};
}

bool is_sealed(int descriptor) {
  const int seals = fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK);
}

}  // namespace

SharedFile new_shared_memory(const char* title, std::size_t bytes) {
  // MFD_NOEXEC_SEAL, which some systems insist on; Linux knows it from 6.3 on.
  constexpr unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING, not_executable = 8;
  int memory = memfd_create(title, flags | not_executable);
  if (memory < 0 && errno == EINVAL) memory = memfd_create(title, flags);
  FileDescriptor file(memory);
  if (file.fd < 0 || ftruncate(file.fd, static_cast<off_t>(bytes)) != 0 ||
      fcntl(file.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return {.error = errno};
  return {.descriptor = std::exchange(file.fd, -1), .bytes = bytes};
}

bool is_shared_memory(int descriptor, std::size_t bytes) {
  struct stat about {};
  return fstat(descriptor, &about) == 0 && about.st_size == static_cast<off_t>(bytes) &&
         is_sealed(descriptor);
}

std::string path_of_descriptor(int process, int descriptor) {
  return "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
}

SharedFile open_shared_memory(const std::string& path, std::size_t bytes) {
  // The file may be anything, such as a pipe or a terminal.
  const SharedFile memory = opened_file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (memory.bytes == bytes && is_sealed(memory.descriptor)) return memory;
  FileDescriptor(memory.descriptor);
  return {};
}

bool has_file(const std::string& path, std::uint64_t number) {
  struct stat about {};
  return stat(path.c_str(), &about) == 0 && about.st_ino == number;
}

SharedFile open_own_program() {
  return opened_file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
}

int map_shared(int descriptor, std::size_t bytes, void*& memory) {
  return map(descriptor, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory);
}

int map_read_only(int descriptor, std::size_t bytes, void*& memory) {
  return map(descriptor, bytes, PROT_READ, MAP_PRIVATE, memory);
}

void unmap(void* memory, std::size_t bytes) {
  munmap(memory, bytes);
}

}  // namespace tg::os
