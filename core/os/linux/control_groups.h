// The memory that Linux control groups leave to a process, for available_memory() in core/os/memory.h.
#pragma once

#include <cstddef>
#include <string>

namespace tg::os {

// `groups` lists the groups of the process, as /proc/self/cgroup does, and `mount` is /sys/fs/cgroup.
// SIZE_MAX without a limit.
std::size_t left_in_cgroups(const std::string& groups, const std::string& mount);

}  // namespace tg::os
