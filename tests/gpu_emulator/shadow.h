// Checks every memory access of a kernel. Detects races. In a race, two threads of a block access the same
// shared memory without a barrier in between, and at least one of them writes. Also detects misaligned
// accesses, and reads of static shared memory before it is written. Kernels are compiled with
// -fsanitize=thread, so each access calls a function. This code defines these functions. They replace the
// thread sanitizer's library. Bulk copies and wgmma access shared memory asynchronously. shadow_async.cpp
// checks them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/gpu_emulator/clocks.h"

namespace tg::emulator {

void forget_accesses(unsigned threads);          // called at the start of a block or cluster
void order_block(unsigned first, unsigned end);  // __syncthreads of these threads
void order_warp(unsigned warp);                  // __syncwarp
void note_write(void* p, int bytes);             // for code that is compiled without these calls

// A thread's access. It packs the number of the block's last barrier (22 bits), the time of the thread's warp
// (26 bits) and the thread's number (16 bits). The barrier count is not reset between blocks.
using Access = std::uint64_t;
inline std::uint32_t barrier_of(Access a) {
  return static_cast<std::uint32_t>(a >> 42);
}
inline Time time_of(Access a) {
  return static_cast<Time>(a >> 16 & 0x3ffffff);
}
inline unsigned thread_of(Access a) {
  return a & 0xffff;
}
Access access_here();                 // an access of the running thread at this time
bool is_ordered_here(Access before);  // last accesses before the current one

// The ordinary accesses to two bytes of shared memory. They are compared with copies and wgmma, too.
struct Location {
  Access write, read, other_read;  // other_read is by a different warp from `read`
};
constexpr std::size_t grain = 2;  // bytes of a location
std::size_t location_of(const void* shared);
Location& location(std::size_t number);
bool is_of_this_block(Access a);
std::string name_of_shared(const void* p);

// ---- shadow_async.cpp ----

void forget_async_accesses();
// Records that the thread issues a bulk copy. The copy arrives with a phase of an mbarrier. Destinations are
// pieces of 16 bytes.
void note_copy(void* to, int bytes, unsigned mbarrier, Time phase);
// Records the source of such a copy if the source is shared memory.
void note_copy_from(const void* from, int bytes, unsigned mbarrier, Time phase);
// Records that the thread issues a bulk copy from shared memory to global memory.
void note_store(const void* from, int bytes);
// Records that wgmma of warps first … last − 1 reads a piece of 16 bytes. The wgmma belongs to group number
// `group`. `issued` is the clock that all threads of the warpgroup know.
void note_product(const void* piece, unsigned first, unsigned last, Time group, const SharedClock& issued);
// Compares an ordinary access of the running thread with the accesses of copies and wgmma.
void check_async(std::size_t location, bool writes, const unsigned char* p);

}  // namespace tg::emulator
