#include "backends/cpu/worker.h"

#include <string>

#include <tilegrad/core/base/error.h>
#include "backends/cpu/team.h"

namespace tg::cpu {

void IndexFault::report(int step, const Found& found) {
  const std::lock_guard lock(mutex_);
  const int known = step_.load(std::memory_order_relaxed);
  if (step > known || (step == known && found.position >= found_.position)) return;
  found_ = found;
  step_.store(step, std::memory_order_relaxed);
}

void Worker::refuse_index(const IndexFault::Found& found) {
  if (fault) fault->report(step, found);
}

Worker::Worker(Team* team, int thread)
    : threads(team->threads), team_(team), thread_(thread), id_(os::current_thread()) {}

void Worker::begin(std::uint32_t first) {
  first_ = phase_ = first;
  calls_ = 0;
  has_left_ = false;
}

int Worker::next_queue() {
  if (calls_ == Team::queues)
    throw Error("[cpu] a kernel called each() more than " + std::to_string(Team::queues) +
                " times between two barriers");
  return calls_++;
}

// Returns the next part of the current range. If the range is exhausted, continues with the next range. A
// thread starts with its own range and then visits each other range once, in cyclic order. The load in the
// loop only avoids an addition to the counter of an exhausted range. fetch_add determines whether a part is
// left.
std::int64_t Worker::next_shared_part(Share& share) {
  if (has_left_ || phase_ != joined_) return no_part;
  if (!share.taken) share.queue = next_queue();
  const int stretches = share.in_order ? 1 : team_->stretches_, own = thread_ * stretches / threads;
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
      share.taken = &team_->stretch_[s].taken[share.queue];
    } while (share.taken->load(std::memory_order_relaxed) >= share.count);
  }
}

bool Worker::barrier() {
  calls_ = 0;
  if (!team_) return true;
  if (has_left_) return false;
  if (phase_ != joined_) {  // all other threads have left this phase
    ++phase_;
    return true;
  }
  if (team_->arrive(*this)) {
    joined_ = team_->open_phase(*this);
  } else {
    action_ = team_->join(*this);
    has_left_ = action_ != Action::stage || team_->first_ != first_;
  }
  ++phase_;
  return !has_left_;
}

void Worker::await(const std::atomic<std::uint32_t>& counter, std::uint32_t value) {
  if (team_) team_->await(*this, counter, value);
}

void Worker::advance(std::atomic<std::uint32_t>& counter, std::uint32_t value) {
  counter.store(value);
  if (team_) team_->wake();
}

}  // namespace tg::cpu
