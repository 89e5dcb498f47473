// Which kernels ran, over how many blocks, and whether the blocks had equal work. If TG_EMULATED_COVERAGE
// names a file, processes append lines to it, which kernels.py joins with the sources.
#pragma once

#include <cstdint>
#include <string>

namespace tg::emulator {

// Accesses of memory by the kernel that runs; for generated kernels, the basic blocks that they entered.
extern constinit thread_local std::uint64_t work_done;

// Counts of executed instructions that compilers neither add nor leave out.
struct Instructions {
  std::uint64_t warps = 0;  // of the lanes of a warp together: shuffles, votes, tensor cores, named barriers
  std::uint64_t barriers = 0;  // __syncthreads of a block
  std::uint64_t copies = 0;    // bytes, of cp.async and bulk copies
  std::uint64_t early = 0;     // of these, by threads that have not yet waited for the kernel before
  std::uint64_t products = 0;  // by wgmma, one for each thread
};
extern constinit thread_local Instructions executed;
void count_copy(int bytes);  // by the thread that runs

// `generated`: the name of a kernel that was compiled at run time. Others have an address.
void begin_recorded_grid(const void* kernel, const std::string& generated = {});
void record_block();  // a block (or cluster) has ended
void end_recorded_grid();

}  // namespace tg::emulator
