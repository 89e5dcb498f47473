// Records for each kernel how many blocks ran and whether they had equal work. If TG_EMULATED_COVERAGE names
// a file, processes append lines to this file. kernels.py joins these lines with the sources.
#pragma once

#include <cstdint>
#include <string>

namespace tg::emulator {

// Counts memory accesses of the running kernel. Generated kernels count the basic blocks that they enter.
extern constinit thread_local std::uint64_t work_done;

// Counts of executed instructions. Compilers neither add nor remove these instructions.
struct Instructions {
  std::uint64_t warps = 0;     // common operations of a warp: shuffles, votes, tensor cores, named barriers
  std::uint64_t barriers = 0;  // __syncthreads of a block
  std::uint64_t copies = 0;    // bytes copied by cp.async and bulk copies
  std::uint64_t early = 0;     // copies by threads before they wait for the previous kernel
  std::uint64_t products = 0;  // wgmma, one for each thread
};
extern constinit thread_local Instructions executed;
void count_copy(int bytes);  // called by the running thread

// `generated` is the name of a kernel that was compiled at run time. Other kernels are identified by their
// address.
void begin_recorded_grid(const void* kernel, const std::string& generated = {});
void record_block();  // called at the end of a block or cluster
void end_recorded_grid();

}  // namespace tg::emulator
