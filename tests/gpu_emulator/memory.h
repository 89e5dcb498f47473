// Emulates device memory, which is filled with NaN and followed by inaccessible pages.
#pragma once

#include <cstddef>

namespace tg::emulator {

void* allocate(std::size_t bytes);  // null if the emulated GPU has too little memory
bool release(void*);                // false for memory that was not allocated here
std::size_t total_memory();
std::size_t free_memory();

// A memory fault in a kernel ends the process, after a line that names the faulting thread.
void tell_faults();

}  // namespace tg::emulator
