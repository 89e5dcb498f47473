// Checks the reads of kernels that may begin early (early_launch.h). A kernel that does not begin early waits
// for all previous kernels. This kernel and later kernels may still run when an early kernel begins. Before
// its wait, an early kernel must not read memory that they have written.
#pragma once

#include <cstddef>

namespace tg::emulator {

void begin_grid();
bool is_before_wait();  // whether the running thread has not waited yet

extern bool tracks_writes;  // true on an emulated Hopper
// Records that a kernel accesses global memory.
void note_global(const void* p, std::size_t bytes, bool writes);
// Records that a library's kernel, which never begins early, writes memory.
void mark_written(const void* p, std::size_t bytes);
void forget_writes();  // records that all previous kernels have ended

}  // namespace tg::emulator
