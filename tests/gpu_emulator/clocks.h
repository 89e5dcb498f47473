// What each thread of a block has been ordered after, as vector clocks. Only blocks that use Hopper's
// barriers need them: in others a count of __syncthreads and one of each warp's __syncwarp say the same, and
// cost less.
//
// The time of a warp advances at each __syncwarp and each release of one of its lanes. A clock holds a time
// for each thread (its accesses before that time are known), another for each thread (those of its writes
// that fence_async has made visible to asynchronous copies and products), for each warp (its groups of
// wgmma), for each warp again (its arrivals at barriers of other blocks) and for each mbarrier (the phases
// whose bulk copies have arrived). The blocks of a cluster have one clock, with all of their threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace tg::emulator {

using Time = std::uint32_t;
using Clock = std::vector<Time>;
using SharedClock = std::shared_ptr<const Clock>;  // null: knows nothing

constexpr unsigned most_mbarriers = 64;

void forget_clocks(unsigned threads);  // a block begins
void start_clocks();                   // something asks for them; no cost after the first call
extern bool clocks_started;
inline bool has_clocks() {
  return clocks_started;
}

// Places in a clock, the first of which are the threads'; and how many there are.
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
Time fenced_by(unsigned thread);  // its own writes before that time are visible to asynchronous copies

void fence_writes(unsigned thread);  // fence.proxy.async
void acquire(unsigned thread, const SharedClock& released);
void learn(unsigned thread, unsigned place, Time time);  // the same for one place

void order_lanes(unsigned warp);                   // __syncwarp
void order_threads(unsigned first, unsigned end);  // __syncthreads

// What is released by several threads, at a barrier.
class Released {
 public:
  void add(unsigned thread);
  // By an arrival without release: not what the thread and others have read and written by themselves, but
  // copies and products that are over, and what they could see.
  void add_asynchronous(unsigned thread);
  void set(unsigned place, Time time);
  SharedClock take();  // and begins again

 private:
  void join(const SharedClock& other);
  SharedClock joined_;  // last: the lanes of a warp often know the same
  std::shared_ptr<Clock> clock_;
};

// What all of several threads know: a product of a warpgroup begins when its first thread issues it.
class CommonKnowledge {
 public:
  void add(unsigned thread);
  SharedClock take() { return clock_; }

 private:
  void lower(unsigned place, Time to);
  std::shared_ptr<Clock> clock_;
  SharedClock last_;
  unsigned first_of_last_ = ~0u;  // the thread that brought it, if no other did
  bool any_ = false;
};

}  // namespace tg::emulator
