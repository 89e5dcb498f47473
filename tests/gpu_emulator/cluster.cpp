#include "tests/gpu_emulator/cluster.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu_emulator/block.h"

namespace tg::emulator {

namespace {

struct Barrier {
  unsigned alive = 0, arrived = 0;  // numbers of threads
  std::uint64_t phases = 0;
  Released arriving;
  SharedClock of_last_phase;
  std::vector<unsigned> waiting;
};
Barrier barrier;

// A thread's state at the barrier. It stores whether the thread has arrived without waiting, and the phase of
// this arrival.
struct Arrival {
  bool open = false;
  std::uint64_t phase = 0;
};
std::vector<Arrival> arrivals;

struct Block {
  bool ended = false;
  Clock kept_until;
};
std::vector<Block> blocks;
unsigned each = 0;  // threads of a block

[[noreturn]] void fail(const std::string& what) {
  give_up("thread " + std::to_string(here.number) + ": " + what);
}
std::string state(const void*) {
  return "the cluster's barrier, which has " + std::to_string(barrier.arrived) + " of " +
         std::to_string(barrier.alive) + " threads";
}

void advance() {
  if (barrier.arrived == 0 || barrier.arrived < barrier.alive) return;
  barrier.of_last_phase = barrier.arriving.take();
  barrier.arrived = 0;
  ++barrier.phases;
  for (const unsigned t : std::exchange(barrier.waiting, {})) wake(t);
}
// A warp has arrived.
void arrive(void* const (&lanes)[32]) {
  const unsigned first = static_cast<unsigned>(here.number) / 32 * 32;
  for (unsigned l = 0; l < 32; ++l) {
    if (!lanes[l]) continue;
    Arrival& a = arrivals[first + l];
    if (a.open) fail("a second cluster_arrive before cluster_wait");
    a = {true, barrier.phases};
    barrier.arriving.add(first + l);
    ++barrier.arrived;
  }
  advance();
}

}  // namespace

void cluster_arrive() {
  meet_warp(~0u, &barrier, arrive);
}
void cluster_wait() {
  const auto me = static_cast<unsigned>(here.number);
  Arrival& a = arrivals[me];
  if (!a.open) fail("cluster_wait with no cluster_arrive before it");
  while (barrier.phases == a.phase) {
    barrier.waiting.push_back(me);
    sleep(state, nullptr);
  }
  a.open = false;
  acquire(me, barrier.of_last_phase);
}

void keep_until(unsigned rank, unsigned place, Time time) {
  Block& b = blocks[rank];
  if (b.ended)
    fail("block " + std::to_string(rank) + " of the cluster has ended, and its shared memory is used");
  b.kept_until[place] = std::max(b.kept_until[place], time);
}

void insist_on_cluster(unsigned blocks_of_grid, unsigned threads, unsigned count) {
  const auto refuse = [&](const std::string& what) {
    throw std::runtime_error("clusters of " + std::to_string(count) + " blocks: " + what);
  };
  if (count == 0 || blocks_of_grid % count != 0)
    refuse("the grid's " + std::to_string(blocks_of_grid) + " blocks are not a multiple");
  if (count > most_blocks) refuse("the emulator has no more than " + std::to_string(most_blocks));
  if (count > 1 && (threads % 128 != 0 || threads * count > 1024))
    refuse("the emulator has those of whole warpgroups, and no more than 1024 threads together");
}
void begin_cluster(unsigned threads, unsigned count) {
  start_clocks();
  each = threads;
  barrier = {};
  barrier.alive = threads * count;
  arrivals.assign(threads * count, {});
  blocks.assign(count, {false, Clock(clock_places())});
}
void end_cluster_thread(unsigned thread) {
  --barrier.alive;
  const Arrival& a = arrivals[thread];
  if (a.open && a.phase == barrier.phases) --barrier.arrived;
  advance();
}
void end_cluster_block(unsigned rank) {
  Released all;
  for (unsigned t = rank * each; t < (rank + 1) * each; ++t) all.add(t);
  const SharedClock known = all.take();
  Block& b = blocks[rank];
  for (unsigned place = 0; place < b.kept_until.size(); ++place)
    if (b.kept_until[place] > at(known, place))
      give_up(
          "block " + std::to_string(rank) +
          " of the cluster has ended, but other blocks' arrivals at its mbarriers, or copies to or from its "
          "shared memory, may not be over");
  b.ended = true;
}

}  // namespace tg::emulator
