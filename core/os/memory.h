// Memory that the system gives.
#pragma once

#include <cstddef>

namespace tg::os {

// How much more memory this process can get: the least of what the machine has available, what the process's
// control groups leave (containers), and what its address space limit leaves (ulimit -v). SIZE_MAX if none of
// them is known.
std::size_t available_memory();

// Asks the system to back this memory with large pages, where it has them.
void prefer_huge_pages(void* memory, std::size_t bytes);

}  // namespace tg::os
