// A thread block of the emulator: threads, which are fibers, common operations of threads, and shared memory.
// Blocks of a grid run one after another. Blocks of a cluster run at the same time. A thread runs until it
// must wait for others. Threads run in order, or in reverse order if TG_EMULATOR_ORDER=reverse is set.
// Results must be the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace tg::emulator {

struct Index3 {
  unsigned x, y, z;
};

// CUDA's built-in variables for the running thread. They are set at every switch.
struct Here {
  Index3 thread, block, block_size, grid_size;
  int number;     // of the thread in its block, or counted through the blocks of its cluster; -1 outside of
                  // kernels
  unsigned rank;  // index of the block in its cluster
};
extern constinit thread_local Here here;

inline constexpr std::size_t most_shared = std::size_t{227} << 10;  // bytes of dynamic shared memory

inline constexpr unsigned most_blocks = 4;  // largest size of a cluster
extern unsigned cluster_blocks;             // size of the running cluster; 1: no cluster

// Runs a grid, in clusters of `cluster` neighboring blocks in x. Throws std::runtime_error, with the block
// and the threads, if threads wait for others that never arrive, or disagree about a common operation.
void run_grid(Index3 grid, Index3 block, std::size_t shared_bytes, const std::function<void()>& thread,
              unsigned cluster = 1);

// ---- for the running thread ----

// __syncthreads: returns when all unfinished threads of the block have arrived. Returns the sum of their
// values.
int meet_block(int value = 0);

// Ends the grid with an error. Any thread may call it.
[[noreturn]] void give_up(const std::string& why);

// Performs a common operation of the lanes of a mask. The last lane to arrive calls `apply` with the argument
// of each lane. The argument is null for lanes that are not in the mask or have ended. Then all lanes
// continue.
using Apply = void (*)(void* const (&brought)[32]);
void meet_warp(unsigned mask, void* brought, Apply apply);
void sync_warp(unsigned mask);  // __syncwarp

inline unsigned lane() {
  return static_cast<unsigned>(here.number) % 32;
}
unsigned active_lanes();  // the lanes of the warp that have not ended

// Waits until another thread calls wake(). `why` describes the event. If threads wait forever, the error
// contains this description.
using Why = std::string (*)(const void* about);
void sleep(Why why, const void* about);
void wake(unsigned thread);
// Lets the other threads run. Returns when all of them wait or have ended.
void let_others_run();

unsigned threads_in_block();
unsigned threads_in_cluster();
const unsigned char* stack_top();  // the upper end of the thread's stack
std::size_t shared_size();         // bytes of dynamic shared memory that the launch requested

// The dynamic shared memory of a block, which is filled with NaN when the block begins. Without a rank, this
// is the block of the running thread.
unsigned char* dynamic_shared(unsigned rank);
inline unsigned char* dynamic_shared() {
  return dynamic_shared(here.rank);
}
// Addresses of shared memory as numbers, which include the rank of the block in the cluster.
std::uint32_t shared_address(const void* p);
unsigned char* shared_pointer(std::uint32_t address);
std::uint32_t shared_of(std::uint32_t address, unsigned rank);  // the same offset in block `rank`
unsigned block_of(std::uint32_t address);

// Copies of cp.async. The destination is NaN until the thread waits for the group. The source is read at that
// time.
void copy_later(void* to, const void* from, int bytes, int filled);
void commit_copies();
void wait_copies(int pending);

}  // namespace tg::emulator
