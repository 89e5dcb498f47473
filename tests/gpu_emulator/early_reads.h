// Reads of kernels that may begin early (early_launch.h), before they wait for the kernel before: of memory
// that no kernel has written since one began that was not early, for that one waited for all before it.
#pragma once

#include <cstddef>

namespace tg::emulator {

void begin_grid();
bool is_before_wait();  // whether the thread that runs has still to wait

extern bool tracks_writes;  // on an emulated Hopper
// An access of a kernel to memory that is not shared.
void note_global(const void* p, std::size_t bytes, bool writes);
// Of a library's kernel, which is not early.
void mark_written(const void* p, std::size_t bytes);
void forget_writes();  // everything before has ended

}  // namespace tg::emulator
