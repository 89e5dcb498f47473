#include "core/os/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "core/base/file_write.h"
#include "core/os/linux/control_groups.h"

namespace tg::os {

namespace {

// Reads the first number in a file. Empty if the file contains "max" or does not exist.
std::optional<std::size_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::size_t n = 0;
  if (file >> n) return n;
  return std::nullopt;
}

// Reads the number after a key, as in "MemAvailable: 123 kB" or "inactive_file 456".
std::optional<std::size_t> number_after(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string key;
  for (std::size_t n; file >> key >> n; file.ignore(256, '\n'))
    if (key == name) return n;
  return std::nullopt;
}

std::size_t difference(std::size_t a, std::size_t b) {
  return a > b ? a - b : 0;
}

// Number of bytes that one control group still allows: the limit minus the used memory that cannot be
// reclaimed.
std::size_t left_in_cgroup(const std::string& group, const char* limit_file, const char* usage_file,
                           const char* reclaimable) {
  const auto limit = number_in(group + limit_file), used = number_in(group + usage_file);
  if (!limit || !used) return SIZE_MAX;
  const std::size_t cache = number_after(group + "/memory.stat", reclaimable).value_or(0);
  return difference(*limit, difference(*used, cache));
}

// A version of control groups: its mount point and its files.
struct Version {
  const char *folder, *limit, *usage, *reclaimable;
};
constexpr Version version_1{"/memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes",
                            "total_inactive_file"};
constexpr Version version_2{"", "/memory.max", "/memory.current", "inactive_file"};

// The minimum over a group and all ancestors up to the root, because each may have a limit. Inside a
// container, the root is the mounted group. /proc/self/cgroup also lists groups above the root, but these are
// not accessible.
std::size_t left_up_to_root(const std::string& mount, std::string group, const Version& v) {
  std::size_t left = SIZE_MAX;
  for (;; group.resize(group.rfind('/'))) {
    std::string folder = mount;
    folder.append(v.folder).append(group);
    left = std::min(left, left_in_cgroup(folder, v.limit, v.usage, v.reclaimable));
    if (group.find('/') == std::string::npos) return left;
  }
}

bool has_word(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

std::size_t left_in_address_space() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  const auto pages = number_in("/proc/self/statm");  // the first number: the size of the address space
  if (!pages) return SIZE_MAX;
  return difference(static_cast<std::size_t>(limit.rlim_cur),
                    *pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
}

}  // namespace

// Each line is "number:controllers:group"; version 2 has the number 0 and no controllers.
std::size_t left_in_cgroups(const std::string& groups, const std::string& mount) {
  std::size_t left = left_up_to_root(mount, "", version_1);
  std::ifstream list(groups);
  for (std::string line; std::getline(list, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      group = line.substr(second + 1);
    if (line.starts_with("0::"))
      left = std::min(left, left_up_to_root(mount, group, version_2));
    else if (has_word(controllers, "memory"))
      left = std::min(left, left_up_to_root(mount, group, version_1));
  }
  return left;
}

std::size_t available_memory() {
  const auto kib = number_after("/proc/meminfo", "MemAvailable:");
  return std::min({kib ? *kib * 1024 : SIZE_MAX, left_in_cgroups("/proc/self/cgroup", "/sys/fs/cgroup"),
                   left_in_address_space()});
}

void prefer_huge_pages(void* memory, std::size_t bytes) {
  madvise(memory, bytes, MADV_HUGEPAGE);
}

namespace {

int map(int descriptor, std::size_t bytes, int access, int kind, void*& memory) {
  void* const mapped = mmap(nullptr, bytes, access, kind, descriptor, 0);
  if (mapped == MAP_FAILED) return errno;
  memory = mapped;
  return 0;
}

// Becomes the owner of the descriptor.
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
  // MFD_NOEXEC_SEAL is required on some systems. Linux supports it since 6.3.
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
  // The path may refer to any kind of file, such as a pipe or a terminal.
  const SharedFile memory = opened_file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (memory.bytes == bytes && is_sealed(memory.descriptor)) return memory;
  const FileDescriptor closed(memory.descriptor);
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
