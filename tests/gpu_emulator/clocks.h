// Each thread of a block has a vector clock. It records which accesses of other threads happened before. Only
// blocks with Hopper's barriers need clocks. In other blocks, counts of __syncthreads and of each warp's
// __syncwarp give the same information at lower cost.
//
// The time of a warp advances at each __syncwarp and at each release by a lane of the warp. A clock contains
// these times:
// - for each thread: the time before which its accesses are known;
// - for each thread: the time before which fence_async has made its writes visible to copies and wgmma;
// - for each warp: the known groups of wgmma;
// - for each warp: the known arrivals at barriers of other blocks;
// - for each mbarrier: the phases whose bulk copies have arrived.
// In a cluster, a clock covers the threads of all blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace tg::emulator {

using Time = std::uint32_t;
using Clock = std::vector<Time>;
using SharedClock = std::shared_ptr<const Clock>;  // null: no accesses are known

constexpr unsigned most_mbarriers = 64;

void forget_clocks(unsigned threads);  // called at the start of a block
void start_clocks();                   // called at the first use; later calls cost nothing
extern bool clocks_started;
inline bool has_clocks() {
  return clocks_started;
}

// The number of entries of a clock, and the indices of entries. The first entries belong to the threads.
std::size_t clock_places();
unsigned fenced_of(unsigned thread);
unsigned products_of(unsigned warp);
unsigned arrivals_of(unsigned warp);
unsigned copies_to(unsigned mbarrier);

struct WarpTime {
  Time now, last_syncwarp;
};
extern WarpTime warp_times[32];
inline Time at(const SharedClock& c, unsigned place) {
  return c ? (*c)[place] : 0;
}
const SharedClock& known_to(unsigned thread);
Time fenced_by(unsigned thread);  // earlier writes of the thread are visible to asynchronous copies

void fence_writes(unsigned thread);  // fence.proxy.async
void acquire(unsigned thread, const SharedClock& released);
void learn(unsigned thread, unsigned place, Time time);  // learns one entry

void order_lanes(unsigned warp);                   // __syncwarp
void order_threads(unsigned first, unsigned end);  // __syncthreads

// Collects the accesses that several threads release at a barrier.
class Released {
 public:
  void add(unsigned thread);
  // Adds an arrival without release. It does not order ordinary reads and writes. It orders finished copies
  // and finished wgmma. It also orders accesses that are visible to these copies and wgmma.
  void add_asynchronous(unsigned thread);
  void set(unsigned place, Time time);
  SharedClock take();  // returns the clock and resets it

 private:
  void join(const SharedClock& other);
  SharedClock joined_;  // cached, because the lanes of a warp often have the same clock
  std::shared_ptr<Clock> clock_;
};

// Collects the accesses that are known to all of several threads. A wgmma of a warpgroup begins when the
// first thread issues it.
class CommonKnowledge {
 public:
  void add(unsigned thread);
  SharedClock take() { return clock_; }

 private:
  void lower(unsigned place, Time to);
  std::shared_ptr<Clock> clock_;
  SharedClock last_;
  unsigned first_of_last_ = ~0u;  // if exactly one thread has added last_, this thread
  bool any_ = false;
};

}  // namespace tg::emulator
