// How much memory the process can still get.
#pragma once

#include <cstddef>

namespace tg::cpu {

// The least of what the machine has available, what the control groups around the process leave it
// (containers), and what is left under its limit of address space (ulimit -v). SIZE_MAX where nothing says.
std::size_t available_memory();

}  // namespace tg::cpu
