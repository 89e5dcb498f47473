// Device memory. It is filled with NaN and followed by pages without access.
#pragma once

#include <cstddef>

namespace tg::emulator {

void* allocate(std::size_t bytes);  // null if it does not fit the emulated GPU's memory
bool release(void*);                // false for memory that was not allocated here
std::size_t total_memory();
std::size_t free_memory();

// A memory fault in a kernel ends the process. Before that, a line with the faulting thread is printed.
void tell_faults();

}  // namespace tg::emulator
