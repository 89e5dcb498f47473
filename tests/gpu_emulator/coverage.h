// Which kernels ran, over how many blocks, and whether the blocks had equal work. If TG_EMULATED_COVERAGE
// names a file, processes append lines to it, which kernels.py joins with the sources.
#pragma once

#include <cstdint>
#include <string>

namespace tg::emulator {

// Accesses of memory by the kernel that runs; for generated kernels, the basic blocks that they entered.
extern constinit thread_local std::uint64_t work_done;

// `generated`: the name of a kernel that was compiled at run time. Others have an address.
void begin_recorded_grid(const void* kernel, const std::string& generated = {});
void record_block();  // a block (or cluster) has ended
void end_recorded_grid();

}  // namespace tg::emulator
