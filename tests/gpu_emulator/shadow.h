// Every access of a kernel to memory. Finds two threads of a block at one place of shared memory, one of them
// writing, with no barrier between them; static shared memory that is read before it is written; and
// misaligned accesses. Kernels are compiled with -fsanitize=thread, which calls a function at each access;
// those functions are here, in the place of the thread sanitizer's own library. Bulk copies and products of
// wgmma, which access shared memory by themselves, are in shadow_async.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/gpu_emulator/clocks.h"

namespace tg::emulator {

void forget_accesses(unsigned threads);          // a block or cluster begins: nothing has been written
void order_block(unsigned first, unsigned end);  // __syncthreads of these threads
void order_warp(unsigned warp);                  // __syncwarp
void note_write(void* p, int bytes);             // by code that is compiled without these calls

// An access of a thread: the number of the last barrier of its block (22 bits), the time of its warp (26) and
// the thread's number (16). The count of barriers continues from block to block.
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
Access access_here();                 // of the thread that runs, now
bool is_ordered_here(Access before);  // before what it does now

// Of ordinary accesses to two bytes of shared memory. Copies and products look at them too.
struct Location {
  Access write, read, other_read;  // other_read: by another warp than read's
};
constexpr std::size_t grain = 2;  // bytes of a location
std::size_t location_of(const void* shared);
Location& location(std::size_t number);
bool is_of_this_block(Access a);
std::string name_of_shared(const void* p);

// ---- shadow_async.cpp ----

void forget_async_accesses();
// The thread issues a bulk copy that arrives with a phase of an mbarrier. Destinations are 16-byte pieces.
void note_copy(void* to, int bytes, unsigned mbarrier, Time phase);
// The same of what such a copy reads, if that is shared memory.
void note_copy_from(const void* from, int bytes, unsigned mbarrier, Time phase);
// The thread issues a bulk copy from shared memory to global memory.
void note_store(const void* from, int bytes);
// A piece of 16 bytes is read by products of warps first … last − 1, in their group of that number; all
// threads of the warpgroup know what `issued` says.
void note_product(const void* piece, unsigned first, unsigned last, Time group, const SharedClock& issued);
// An ordinary access of the thread that runs, compared with those of copies and products.
void check_async(std::size_t location, bool writes, const unsigned char* p);

}  // namespace tg::emulator
