// Checks the reads of kernels that may begin early (early_launch.h), before they wait for the previous
// kernel. They may read only memory that no kernel has written since the last kernel that did not begin
// early, because that kernel waited for all previous ones.
#pragma once

#include <cstddef>

namespace tg::emulator {

void begin_grid();
bool is_before_wait();  // whether the running thread has not waited yet

extern bool tracks_writes;  // on an emulated Hopper
// A kernel accesses global memory.
void note_global(const void* p, std::size_t bytes, bool writes);
// A library's kernel, which never begins early, writes memory.
void mark_written(const void* p, std::size_t bytes);
void forget_writes();  // all previous kernels have ended

}  // namespace tg::emulator
