// How much more memory this process can get.
#pragma once

#include <cstddef>

namespace tg::cpu {

// The least of the memory that the machine has available, that the control groups of the process leave
// (containers), and that its address space limit leaves (ulimit -v). SIZE_MAX if none of them is known.
std::size_t available_memory();

}  // namespace tg::cpu
