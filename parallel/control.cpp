#include "parallel/control.h"

#include <algorithm>

#include "core/os/process.h"
#include "core/run/saving.h"
#include "parallel/message.h"

namespace tg::parallel {

namespace {

constexpr Milliseconds look_each{100};
// If a detector has not run for this time, its process was stopped, possibly together with all other ranks.
constexpr Milliseconds longest_absence{2'000};
// Delay between the exit of a rank and the report about it. After this delay, all messages of that rank have
// arrived. If another rank still waits, it is not waiting for an earlier action of the rank that exited.
constexpr Milliseconds after_its_end{1'000};

}  // namespace

HangDetector::HangDetector(int ranks, Milliseconds step_timeout)
    : step_timeout_(step_timeout), ranks_(static_cast<std::size_t>(ranks)) {}

Milliseconds HangDetector::timeout_of(const Rank& r) const {
  const std::int64_t steps = r.seen.steps - r.first_steps;
  if (steps <= 0) return step_timeout_;
  return std::max(step_timeout_, std::chrono::duration_cast<Milliseconds>(20 * (r.last - r.first) / steps));
}

std::optional<LostRank> HangDetector::look(Time now, std::span<const Seen> ranks) {
  const bool begins = looked_ == Time{} || now - looked_ > longest_absence;
  looked_ = now;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& r = ranks_[i];
    const Seen &was = r.seen, &is = ranks[i];
    if (is.steps != was.steps) {
      if (was.steps == 0) r.first_steps = is.steps, r.first = now;
      r.last = now;
    }
    if (begins || is.steps != was.steps || is.moves != was.moves || is.pauses != was.pauses ||
        is.is_waiting != was.is_waiting || is.has_ended != was.has_ended)
      r.moved = now;
    if (begins || is.beats != was.beats) r.beaten = now;
    r.seen = is;
  }
  // Finds the rank that has waited longest. The rank for which it waits has exited, hangs or is stopped.
  const auto waiting = std::min_element(ranks_.begin(), ranks_.end(), [](const Rank& a, const Rank& b) {
    return std::pair(!a.seen.is_waiting, a.moved) < std::pair(!b.seen.is_waiting, b.moved);
  });
  if (!waiting->seen.is_waiting) return std::nullopt;
  const auto waited = now - waiting->moved;
  const std::string waiter = "rank " + std::to_string(waiting - ranks_.begin()) + " is waiting for it";
  const auto lost = [&](const Rank& r, const std::string& why) {
    return LostRank{static_cast<int>(&r - ranks_.data()), why};
  };
  for (const Rank& r : ranks_)
    if (r.seen.has_ended && !waiting->seen.is_on_gpu && std::min(waited, now - r.moved) >= after_its_end)
      return lost(r, "exited while " + waiter);
  if (step_timeout_ == Milliseconds(0)) return std::nullopt;
  for (const Rank& r : ranks_)
    if (r.seen.has_ended && std::min(waited, now - r.moved) >= timeout_of(r))
      return lost(r, "exited while " + waiter);
  for (const Rank& r : ranks_) {  // a stopped process sends no heartbeats
    const auto silent = now - r.beaten;
    if (&r != &*waiting && silent >= timeout_of(r) && waited >= timeout_of(r))
      return lost(r, "is stopped: no heartbeat for " + seconds_text(silent) + "; " + waiter);
  }
  for (const Rank& r : ranks_) {
    const auto still = now - r.moved;
    if (!r.seen.is_waiting && !r.seen.has_ended && r.seen.pauses == 0 && r.seen.steps > 0 &&
        still >= timeout_of(r) && waited >= timeout_of(r))
      return lost(r, "made no progress for " + seconds_text(still) + " after step " +
                         std::to_string(r.seen.steps - 1) + "; " + waiter);
  }
  return std::nullopt;
}

Watchdog::Watchdog(std::shared_ptr<SharedMemory> memory, std::vector<Connection> connections,
                   std::unique_ptr<Notes> notes, int rank, const JoinOptions& options)
    : memory_(std::move(memory)),
      connections_(std::move(connections)),
      notes_(std::move(notes)),
      rank_(rank),
      end_after_(options.end_after),
      save_after_(options.save_after),
      on_lost_(options.on_lost),
      hangs_(memory_->ranks(), options.step_timeout) {
  if (const int error = stop_.error()) fail_call("pipe", error);
  thread_ = start_thread([this] { run(); });
}

Watchdog::~Watchdog() {
  stop_.wake();
  thread_.join();
}

void Watchdog::run() {
  for (;;) {
    listen();
    if (os::poll({stop_.descriptor()}, 0) == 0) break;
    look_for_hangs();
    if (notes_) notes_->say();
    look_for_lost_ranks();
  }
  if (notes_) notes_->say_goodbye();
}

void Watchdog::listen() {
  std::vector<os::Polled> waited{{stop_.descriptor()}};
  for (const Connection& c : connections_) waited.push_back({c.socket.fd});
  if (notes_) notes_->add_to(waited);
  const int error = os::poll(waited, static_cast<int>(look_each.count()));
  if (notes_)
    notes_->hear();
  else if (error == 0)
    look_at_connections(std::span(waited).subspan(1));
}

void Watchdog::look_at_connections(std::span<const os::Polled> waited) {
  std::vector<Connection> rest;
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    Connection& c = connections_[i];
    if (!waited[i].is_ready) {
      rest.push_back(std::move(c));
    } else if (memory_->state(c.rank).has_ended.load(std::memory_order_acquire) == 0) {
      memory_->mark_lost(c.rank, "is lost: its process exited without reporting an error, or was killed",
                         rank_);
    }
  }
  std::swap(connections_, rest);
}

void Watchdog::look_for_hangs() {
  memory_->state(rank_).beats.fetch_add(1, std::memory_order_relaxed);
  std::vector<HangDetector::Seen> seen;
  for (int r = 0; r < memory_->ranks(); ++r) {
    const RankState& s = memory_->state(r);
    seen.push_back(
        {s.steps, s.moves, s.pauses, s.beats, s.is_waiting != 0, s.has_ended != 0, s.is_waiting == 2});
  }
  if (const std::optional<LostRank> lost = hangs_.look(Clock::now(), seen))
    memory_->mark_lost(lost->rank, lost->why, rank_);
}

// If this rank is writing a checkpoint, it finishes writing. It does not need the lost rank for that, because
// the ranks synchronized before.
std::int64_t Watchdog::time_left() const {
  const EndState& own = own_end_state();
  const std::int64_t now = monotonic_ms(),
                     since = std::chrono::duration_cast<Milliseconds>(Clock::now() - lost_).count();
  return time_to_end(now, now - since, {end_after_.count(), std::max(save_after_, end_after_).count()},
                     own.writing, own.saved);
}

void Watchdog::look_for_lost_ranks() {
  try {
    memory_->check_lost();
  } catch (const RankLost& e) {
    if (lost_ == HangDetector::Time{}) {
      lost_ = Clock::now();
      try {
        if (on_lost_) on_lost_(e);
      } catch (...) {  // the rank exits after any exception
      }
    }
    if (end_after_ != Milliseconds(0) && time_left() == 0)
      os::end_with_line(std::string(e.what()) + "\n", exit_rank_lost);
  }
}

}  // namespace tg::parallel
