#include "backends/cpu/worker.h"

#include <string>

#include <tilegrad/core/base/error.h>
#include "backends/cpu/pool.h"

namespace tg::cpu {

void IndexFault::report(int step, const Found& found) {
  const std::lock_guard lock(mutex_);
  const int known = step_.load(std::memory_order_relaxed);
  if (step > known || (step == known && found.position >= found_.position)) return;
  found_ = found;
  step_.store(step, std::memory_order_relaxed);
}

void Worker::refuse_index(std::int64_t index, std::int64_t size, std::int64_t position) {
  if (fault) fault->report(step, {index, size, position});
}

int Worker::next_queue() {
  if (calls_ == Team::queues)
    throw Error("[cpu] a kernel called each() more than " + std::to_string(Team::queues) +
                " times between two barriers");
  return calls_++;
}

// Takes the next part of the current stretch. When it is used up, goes on to the next stretch with parts
// left: first the thread's own, then round the others, each once. Team states the invariants of the counters.
// The load in the loop only saves an addition to a counter of a stretch that is used up; whether a part is
// left is decided by fetch_add.
std::int64_t Worker::next_shared_part(Share& share) {
  if (!share.taken) share.queue = next_queue();
  const int stretches = share.in_order ? 1 : team_.stretches, own = thread * stretches / threads;
  for (;;) {
    if (share.taken) {
      const std::int64_t part = share.taken->fetch_add(1, std::memory_order_relaxed);
      if (part < share.count) return share.first + part;
    }
    do {
      if (share.stretches == stretches) return no_part;
      const int s = (own + share.stretches++) % stretches;
      share.first = share.parts * s / stretches;
      share.count = share.parts * (s + 1) / stretches - share.first;
      share.taken = &team_.stretch[s].taken[generation_ & 1][share.queue];
    } while (share.taken->load(std::memory_order_relaxed) >= share.count);
  }
}

void Worker::barrier() {
  calls_ = 0;
  const std::uint32_t mine = generation_++;
  if (threads == 1) return;
  if (team_.arrived.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
    team_.arrived.store(0, std::memory_order_relaxed);
    for (Team::Stretch& s : team_.stretch)
      for (auto& taken : s.taken[mine & 1])
        taken.store(0, std::memory_order_relaxed);  // free until generation mine + 2
    team_.generation.store(mine + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; team_.generation.load(std::memory_order_acquire) == mine; ++spins) relax(spins);
}

}  // namespace tg::cpu
