// Device memory: filled with NaN, followed by pages without access.
#pragma once

#include <cstddef>

namespace tg::emulator {

void* allocate(std::size_t bytes);  // null where it does not fit the emulated GPU's memory
bool release(void*);                // false for memory that was not allocated here
std::size_t total_memory();
std::size_t free_memory();

// A memory fault in a kernel ends the process; this line is written first, with where the thread was.
void tell_faults();

}  // namespace tg::emulator
