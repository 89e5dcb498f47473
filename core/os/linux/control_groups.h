// The memory that a process may still allocate under the limits of its Linux control groups.
// available_memory() in core/os/memory.h uses it.
#pragma once

#include <cstddef>
#include <string>

namespace tg::os {

// `groups` is the path of a list of the process's groups, such as /proc/self/cgroup. `mount` is the mount
// point, such as /sys/fs/cgroup. Returns SIZE_MAX if there is no limit.
std::size_t left_in_cgroups(const std::string& groups, const std::string& mount);

}  // namespace tg::os
