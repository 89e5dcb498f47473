// Limits that Linux reports in files. A missing file means no limit.
#include "backends/cpu/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

namespace tg::cpu {

namespace {

// The first number in a file; none for "max" or where there is no file.
std::optional<std::size_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::size_t n = 0;
  if (file >> n) return n;
  return std::nullopt;
}

// The number after a key: "MemAvailable:   123 kB", "inactive_file 456".
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

// Bytes that one control group leaves: its limit minus the memory in use that cannot be reclaimed.
std::size_t left_in_cgroup(const std::string& group, const char* limit_file, const char* usage_file,
                           const char* reclaimable) {
  const auto limit = number_in(group + limit_file), used = number_in(group + usage_file);
  if (!limit || !used) return SIZE_MAX;
  const std::size_t cache = number_after(group + "/memory.stat", reclaimable).value_or(0);
  return difference(*limit, difference(*used, cache));
}

// The least that the control groups around this process leave.
std::size_t left_in_cgroups() {
  std::size_t left =
      left_in_cgroup("/sys/fs/cgroup/memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes",
                     "total_inactive_file");  // version 1, as a container sees it
  std::ifstream list("/proc/self/cgroup");
  for (std::string line; std::getline(list, line);) {
    if (!line.starts_with("0::")) continue;  // version 2: every group up to the root may have a limit
    for (std::string group = line.substr(3);; group.resize(group.rfind('/'))) {
      left = std::min(
          left, left_in_cgroup("/sys/fs/cgroup" + group, "/memory.max", "/memory.current", "inactive_file"));
      if (group.find('/') == std::string::npos) break;
    }
  }
  return left;
}

std::size_t left_in_address_space() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  const auto pages = number_in("/proc/self/statm");  // the first number: the size of the address space
  if (!pages) return SIZE_MAX;
  return difference(static_cast<std::size_t>(limit.rlim_cur),
                    *pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
}

}  // namespace

std::size_t available_memory() {
  const auto kib = number_after("/proc/meminfo", "MemAvailable:");
  return std::min({kib ? *kib * 1024 : SIZE_MAX, left_in_cgroups(), left_in_address_space()});
}

}  // namespace tg::cpu
