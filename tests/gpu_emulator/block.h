// A thread block: its threads as fibers, the places where they meet, and its shared memory. Blocks of a grid
// run one after another, those of a cluster at the same time; threads run until they meet, in order (or in
// reverse order, when the environment says TG_EMULATOR_ORDER=reverse: results must be the same).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace tg::emulator {

struct Index3 {
  unsigned x, y, z;
};

// What CUDA's built-in variables say, for the thread that runs. Set at every switch.
struct Here {
  Index3 thread, block, block_size, grid_size;
  int number;     // of the thread in its block; of a cluster's, counted through its blocks; -1 outside of
                  // kernels
  unsigned rank;  // of the block in its cluster
};
extern constinit thread_local Here here;

inline constexpr std::size_t most_shared = std::size_t{227} << 10;  // bytes of dynamic shared memory

inline constexpr unsigned most_blocks = 4;  // of a cluster
extern unsigned cluster_blocks;             // of the cluster that runs; 1: its block has no other beside it

// Runs a grid, in clusters of that many neighbours in x. Throws std::runtime_error, with the block and the
// threads, if threads wait for others that never come, or disagree about what they do together.
void run_grid(Index3 grid, Index3 block, std::size_t shared_bytes, const std::function<void()>& thread,
              unsigned cluster = 1);

// ---- for the thread that runs ----

// __syncthreads: returns when all threads of the block that have not ended are here; the sum of their values.
int meet_block(int value = 0);

// Ends the grid with an error, from wherever the thread is.
[[noreturn]] void give_up(const std::string& why);

// Something the lanes of a mask do together. The last to come calls apply with what each lane brought (null
// for lanes that are not in the mask or have ended); then all go on.
using Apply = void (*)(void* const (&brought)[32]);
void meet_warp(unsigned mask, void* brought, Apply apply);
void sync_warp(unsigned mask);  // __syncwarp

inline unsigned lane() {
  return static_cast<unsigned>(here.number) % 32;
}
unsigned active_lanes();  // of the warp that have not ended

// Waits until another thread calls wake. `why` describes what for, for the report of threads that wait for
// ever.
using Why = std::string (*)(const void* about);
void sleep(Why why, const void* about);
void wake(unsigned thread);
// Lets the others run, and returns when they have come to where they wait or end.
void let_others_run();

unsigned threads_in_block();
unsigned threads_in_cluster();
const unsigned char* stack_top();  // the upper end of the thread's stack
std::size_t shared_size();         // bytes of dynamic shared memory that the launch asked for

// A block's dynamic shared memory, NaN when the block begins; without a rank, that of the running thread's.
unsigned char* dynamic_shared(unsigned rank);
inline unsigned char* dynamic_shared() {
  return dynamic_shared(here.rank);
}
// Addresses of shared memory as numbers, which say the block of the cluster.
std::uint32_t shared_address(const void* p);
unsigned char* shared_pointer(std::uint32_t address);
std::uint32_t shared_of(std::uint32_t address, unsigned rank);  // the same place in that block's
unsigned block_of(std::uint32_t address);

// Copies of cp.async: the destination is NaN until the thread waits for the group, and read by the source
// then.
void copy_later(void* to, const void* from, int bytes, int filled);
void commit_copies();
void wait_copies(int pending);

}  // namespace tg::emulator
