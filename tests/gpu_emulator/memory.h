// Device memory: filled with NaN, with pages behind it that no one may touch.
#pragma once

#include <cstddef>

namespace tg::emulator {

void* allocate(std::size_t bytes);  // null where it does not fit the emulated GPU's memory
bool release(void*);                // false for what was not allocated
std::size_t total_memory();
std::size_t free_memory();

// A memory fault in a kernel ends the process; this line is written first, with where the thread was.
void tell_faults();

}  // namespace tg::emulator
