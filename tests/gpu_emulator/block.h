// A thread block of the emulator. It has threads (fibers), common operations of threads, and shared memory.
// Blocks of a grid run one after another. Blocks of a cluster run at the same time. A thread runs until it
// must wait for other threads. Threads run in order. If TG_EMULATOR_ORDER=reverse is set, they run in reverse
// order. Both orders must give the same results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace tg::emulator {

struct Index3 {
  unsigned x, y, z;
};

// CUDA's built-in variables for the running thread. They change at every switch of threads.
struct Here {
  Index3 thread, block, block_size, grid_size;
  int number;     // index in the block or, in a cluster, in all of its blocks; -1 outside of kernels
  unsigned rank;  // index of the block in its cluster
};
extern constinit thread_local Here here;

inline constexpr std::size_t most_shared = std::size_t{227} << 10;  // bytes of dynamic shared memory

inline constexpr unsigned most_blocks = 4;  // largest size of a cluster
extern unsigned cluster_blocks;             // size of the running cluster; 1: no cluster

// Runs a grid in clusters of `cluster` neighboring blocks in x. Throws std::runtime_error if threads wait for
// threads that never arrive, or if threads disagree about a common operation. The error names the block and
// the threads.
void run_grid(Index3 grid, Index3 block, std::size_t shared_bytes, const std::function<void()>& thread,
              unsigned cluster = 1);

// ---- for the running thread ----

// __syncthreads. Returns when all unfinished threads of the block have arrived. The result is the sum of
// their values.
int meet_block(int value = 0);

// Ends the grid with an error. Any thread may call it.
[[noreturn]] void give_up(const std::string& why);

// Performs a common operation of the lanes in a mask. The last lane to arrive calls `apply` with the
// arguments of all lanes. If a lane is not in the mask or has ended, its argument is null. Then all lanes
// continue.
using Apply = void (*)(void* const (&brought)[32]);
void meet_warp(unsigned mask, void* brought, Apply apply);
void sync_warp(unsigned mask);  // __syncwarp

inline unsigned lane() {
  return static_cast<unsigned>(here.number) % 32;
}
unsigned active_lanes();  // the warp's lanes that have not ended

// Waits until another thread calls wake(). `why` describes the event. If threads wait forever, the error
// contains this description.
using Why = std::string (*)(const void* about);
void sleep(Why why, const void* about);
void wake(unsigned thread);
// Lets the other threads run. Returns when each of them is waiting or has ended.
void let_others_run();

unsigned threads_in_block();
unsigned threads_in_cluster();
const unsigned char* stack_top();  // the upper end of the thread's stack
std::size_t shared_size();         // bytes of dynamic shared memory that the launch requested

// Returns the dynamic shared memory of a block. When a block begins, this memory is filled with NaN. Without
// a rank, the block is the running thread's block.
unsigned char* dynamic_shared(unsigned rank);
inline unsigned char* dynamic_shared() {
  return dynamic_shared(here.rank);
}
// Addresses of shared memory as numbers. They contain the rank of the block in the cluster.
std::uint32_t shared_address(const void* p);
unsigned char* shared_pointer(std::uint32_t address);
std::uint32_t shared_of(std::uint32_t address, unsigned rank);  // the same offset in block `rank`
unsigned block_of(std::uint32_t address);

// A copy of cp.async. Until the thread waits for the copy's group, the destination is NaN. The source is read
// during this wait.
void copy_later(void* to, const void* from, int bytes, int filled);
void commit_copies();
void wait_copies(int pending);

}  // namespace tg::emulator
