#include "backends/cpu/team.h"

#include <algorithm>
#include <chrono>
#include <climits>

#include "backends/cpu/worker.h"
#include "core/base/spin.h"
#include "core/os/thread.h"

namespace tg::cpu {

namespace {

// The fields of Team::state_.
constexpr std::uint64_t one_joined = 1, one_arrived = 1 << 16;
constexpr std::uint64_t for_caller = 1 * one_arrived, ended = 2 * one_arrived, stopped = 3 * one_arrived;
std::uint64_t joined(std::uint64_t state) {
  return state & 0xffff;
}
std::uint64_t arrived(std::uint64_t state) {
  return state >> 16 & 0xffff;
}
std::uint32_t phase(std::uint64_t state) {
  return static_cast<std::uint32_t>(state >> 32);
}
bool is_open(std::uint64_t state) {
  return joined(state) > 0 && arrived(state) == 0;
}
bool is_marked(std::uint64_t state, std::uint64_t mark) {
  return (state & 0xffffffff) == mark;
}

const std::uint32_t* address(const std::atomic<std::uint32_t>& word) {
  static_assert(sizeof word == sizeof(std::uint32_t));
  return reinterpret_cast<const std::uint32_t*>(&word);
}

}  // namespace

Team::Team(int threads)
    : threads(threads),
      state_(ended),
      thread_states_(std::make_unique<ThreadState[]>(static_cast<std::size_t>(threads))) {}

// Another thread writes the state that `ready` reads and then calls wake(). All accesses are seq_cst.
// Therefore either the writer sees that a thread is about to sleep, or that thread sees the new state.
template <class Ready>
void Team::wait_until(const Worker& w, Ready&& ready) {
  std::chrono::microseconds& limit = own_state(w).spin;
  if (spin_until(ready, limit)) {
    limit = std::min(2 * limit, longest_spin);
    return;
  }
  limit = std::max(limit / 4, shortest_spin);
  if (help_preempted(w, ready)) return;
  for (;;) {
    const std::uint32_t word = sleep_.fetch_or(1) | 1;
    if (ready()) return;
    os::wait_while_equal(address(sleep_), word, false);
    leave_waker(w);
    if (ready()) return;
  }
}

// Finds a thread that has a part but is not running, and moves it to this thread's processor. This processor
// is free because this thread is about to sleep. A thread is not running if its CPU time does not advance.
template <class Ready>
bool Team::help_preempted(const Worker& w, Ready&& ready) {
  struct Seen {
    os::ThreadId id;
    double seconds;
  } seen[watched];
  int count = 0;
  for (int i = 1; i < threads && count < watched; ++i) {
    const os::ThreadId id =
        thread_states_[static_cast<std::size_t>((w.thread() + i) % threads)].working.load();
    if (id == 0) continue;
    if (const double seconds = os::processor_seconds(id); seconds >= 0) seen[count++] = {id, seconds};
  }
  if (count == 0) return false;
  if (spin_until(ready, watch)) return true;
  for (int i = 0; i < count; ++i)
    if (os::processor_seconds(seen[i].id) - seen[i].seconds < 1e-6 * static_cast<double>(watch.count()) / 4) {
      os::move_thread(seen[i].id, os::current_processor());
      break;
    }
  return false;
}

void Team::leave_waker(const Worker& w) {
  const int here = os::current_processor();
  if (here != waker_.load(std::memory_order_relaxed)) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - own_state(w).last_move < between_moves) return;
  own_state(w).last_move = now;
  os::leave_processor(here, threads);
}

void Team::wake() {
  std::uint32_t word = sleep_.load();
  if (word % 2 == 0) return;
  waker_.store(os::current_processor(), std::memory_order_relaxed);
  if (sleep_.compare_exchange_strong(word, word + 1)) os::wake(address(sleep_), INT_MAX, false);
}

void Team::await(const Worker& w, const std::atomic<std::uint32_t>& counter, std::uint32_t value) {
  wait_until(w, [&] { return counter.load() == value; });
}

Action Team::join(Worker& w) {
  Action action = Action::ended;
  wait_until(w, [&] {
    std::uint64_t state = state_.load();
    while (is_open(state))
      if (state_.compare_exchange_weak(state, state + one_joined)) {
        own_state(w).working.store(w.id_, std::memory_order_relaxed);
        w.joined_ = phase(state);
        action = Action::stage;
        return true;
      }
    if (w.thread_ == 0 && is_marked(state, for_caller)) {
      action = Action::baton;
      return true;
    }
    return is_marked(state, stopped) || (w.thread_ == 0 && is_marked(state, ended));
  });
  return action;
}

bool Team::arrive(const Worker& w) {
  own_state(w).working.store(0, std::memory_order_relaxed);
  const std::uint64_t state = state_.fetch_add(one_arrived);
  return arrived(state) + 1 == joined(state);
}

void Team::reset_counters() {
  for (int s = 0; s < stretches_; ++s)
    for (std::atomic<std::int64_t>& taken : stretch_[s].taken) taken.store(0, std::memory_order_relaxed);
}

// Passes the baton on. Opens the next phase, or stores why there is no next phase. Returns the number of the
// phase.
std::uint32_t Team::publish(std::uint64_t low) {
  const std::uint32_t next = phase(state_.load(std::memory_order_relaxed)) + 1;
  state_.store(std::uint64_t{next} << 32 | low);
  return next;
}

std::uint32_t Team::open_phase(const Worker& w) {
  reset_counters();
  own_state(w).working.store(w.id_, std::memory_order_relaxed);
  const std::uint32_t opened = publish(one_joined);
  wake();
  return opened;
}

Action Team::advance(Worker& w) {
  const int next = job_->next(w.thread_);
  if (next >= 0) {
    stage_ = next;
    first_ = phase(state_.load(std::memory_order_relaxed)) + 1;
    w.joined_ = open_phase(w);
    return Action::stage;
  }
  publish(next == Job::end ? ended : for_caller);
  if (w.thread_ == 0) return Action::ended;
  wake();
  return join(w);
}

void Team::run_actions(Worker& w, Action action) {
  while (action != Action::ended) {
    if (action == Action::baton) {
      action = advance(w);
      continue;
    }
    w.begin(first_);
    job_->share(w, stage_);
    action = w.has_left_ ? w.action_ : arrive(w) ? Action::baton : join(w);
  }
}

void Team::run(Job& job) {
  job_ = &job;
  Worker w(this, 0);
  run_actions(w, Action::baton);
}

void Team::work(int thread) {
  Worker w(this, thread);
  run_actions(w, join(w));
}

void Team::stop() {
  publish(stopped);
  wake();
}

}  // namespace tg::cpu
