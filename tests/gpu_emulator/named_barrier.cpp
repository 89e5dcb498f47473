#include "tests/gpu_emulator/named_barrier.h"

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu_emulator/block.h"
#include "tests/gpu_emulator/clocks.h"

namespace tg::emulator {

namespace {

// A barrier counts arrivals from any thread, as in hardware. An arrival for the next phase counts in the
// current phase.
struct Barrier {
  int number = 0, threads = 0, arrived = 0;  // number of threads; 0 before the first use
  std::uint64_t phases = 0;
  Released arriving;
  SharedClock of_last_phase;
  std::vector<unsigned> waiting;
};
std::array<std::array<Barrier, 16>, most_blocks> barriers;  // for each block
Barrier& own(int barrier) {
  return barriers[here.rank][static_cast<std::size_t>(barrier)];
}

struct Arrival {
  int barrier, threads;
  std::uint64_t phase;  // the phase of the arrival
};

[[noreturn]] void fail(int barrier, const std::string& what) {
  give_up("thread " + std::to_string(here.number) + ": barrier " + std::to_string(barrier) + " " + what);
}
std::string state(const void* about) {
  const Barrier& b = *static_cast<const Barrier*>(about);
  return "barrier " + std::to_string(b.number) + ", which has " + std::to_string(b.arrived) + " of " +
         std::to_string(b.threads) + " threads";
}

void check(const Arrival& a) {
  if (a.barrier < 1 || a.barrier > 15) fail(a.barrier, "is not one of 1 … 15");
  if (a.threads < 32 || a.threads % 32 != 0 || static_cast<unsigned>(a.threads) > threads_in_block())
    fail(a.barrier, "is used for " + std::to_string(a.threads) + " threads");
  Barrier& b = own(a.barrier);
  if (b.threads != 0 && b.threads != a.threads)
    fail(a.barrier,
         "is used for " + std::to_string(a.threads) + " threads, and for " + std::to_string(b.threads));
  b.number = a.barrier, b.threads = a.threads;
}

// A warp has arrived.
void arrive(void* const (&lanes)[32]) {
  start_clocks();
  const Arrival first = *static_cast<const Arrival*>(lanes[static_cast<unsigned>(here.number) % 32]);
  check(first);
  Barrier& b = own(first.barrier);
  for (unsigned l = 0; l < 32; ++l)
    if (auto* a = static_cast<Arrival*>(lanes[l])) {
      if (a->barrier != first.barrier || a->threads != first.threads)
        fail(first.barrier, "is not that of all lanes");
      a->phase = b.phases;
      b.arriving.add(static_cast<unsigned>(here.number) / 32 * 32 + l);
    }
  b.arrived += 32;
  if (b.arrived < b.threads) return;
  b.of_last_phase = b.arriving.take();
  b.arrived = 0;
  ++b.phases;
  for (const unsigned t : std::exchange(b.waiting, {})) wake(t);
}

}  // namespace

void bar_arrive(int barrier, int threads) {
  Arrival mine{barrier, threads, 0};
  meet_warp(~0u, &mine, arrive);
}
void bar_sync(int barrier, int threads) {
  Arrival mine{barrier, threads, 0};
  meet_warp(~0u, &mine, arrive);
  Barrier& b = own(barrier);
  const auto me = static_cast<unsigned>(here.number);
  while (b.phases == mine.phase) {
    b.waiting.push_back(me);
    sleep(state, &b);
  }
  acquire(me, b.of_last_phase);
}
void forget_named_barriers() {
  barriers = {};
}

}  // namespace tg::emulator
