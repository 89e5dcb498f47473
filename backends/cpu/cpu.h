// The CPU backend, and how much more memory this process can get.
#pragma once

#include <cstddef>
#include <string>

#include <tilegrad/core/run/backend.h>

namespace tg::cpu {

Backend& backend();

// The least of the memory that the machine has available, that the control groups of the process leave
// (containers), and that its address space limit leaves (ulimit -v). SIZE_MAX if none of them is known.
std::size_t available_memory();

// What the control groups leave to a process: `groups` lists its groups, as /proc/self/cgroup does, and
// `mount` is /sys/fs/cgroup. SIZE_MAX without a limit.
std::size_t left_in_cgroups(const std::string& groups, const std::string& mount);

}  // namespace tg::cpu
