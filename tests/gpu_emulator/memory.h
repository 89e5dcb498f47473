// Emulates device memory. The memory is filled with NaN and followed by inaccessible pages.
#pragma once

#include <cstddef>

namespace tg::emulator {

void* allocate(std::size_t bytes);  // null if the emulated GPU lacks memory
bool release(void*);                // false for memory from other allocators
std::size_t total_memory();
std::size_t free_memory();

// A memory fault in a kernel ends the process after a message with the faulting thread.
void tell_faults();

}  // namespace tg::emulator
