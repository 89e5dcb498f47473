// What SIGINT, SIGTERM and SIGHUP do to a tool that may have something to save. Usually they end it
// immediately. While an OrderlyStop exists the first one only asks: the tool has EndTimes to save and to end.
#pragma once

#include <algorithm>
#include <atomic>
#include <span>

#include "core/os/signals.h"
#include "core/os/streams.h"
#include "parallel/launch_board.h"

namespace tg {

namespace stop_signals {

inline const char* tool = "";
inline std::atomic<bool> is_orderly{false};
inline std::atomic<std::int64_t> asked_at{0};     // by monotonic_ms(); 0: not yet
inline const parallel::Launch* launch = nullptr;  // passes signals on

// GNU timeout and others send a signal twice, to the process and to its group.
constexpr std::int64_t same_request_ms = 200;

// For how long it need not look again. A rank may wait for one that saves.
inline std::int64_t time_left() {
  const EndState& own = own_end_state();
  const std::span<const EndState> states = launch ? launch->ranks : std::span(&own, 1);
  const EndTimes times = launch ? launch->times : EndTimes{};
  const std::int64_t now = monotonic_ms();
  std::int64_t most = 0;
  for (const EndState& s : states)
    most = std::max(most, time_to_end(now, asked_at, times, s.saving, s.saved));
  return most;
}

// Its time is over, perhaps: it waits for a rank, a reader of its output, or a disk.
inline void on_timer(int, os::ProcessId) {
  if (const std::int64_t ms = time_left()) return os::set_timer(ms);
  const char* const words[] = {tool, ": ended by its signal before it could stop in order\n"};
  if (os::has_room(os::standard_error))  // not by stdio, which the program may hold
    for (const char* w : words) os::write_some(os::standard_error, w);
  os::end_by_signal(own_end_state().asked_by);
}

inline void on_signal(int signal, os::ProcessId sender) {
  const std::int64_t now = monotonic_ms();
  if (std::int64_t none = 0; asked_at.compare_exchange_strong(none, now)) {
    own_end_state().asked_by = signal;  // launch looks there
    if (!is_orderly) os::end_by_signal(signal);
    os::set_timer(time_left());
  } else if (!is_orderly || (now - asked_at > same_request_ms && (!launch || sender != launch->process))) {
    os::end_by_signal(signal);
  }
}

// SIGINT is handled also if the caller ignores it, as scripts do for background processes. A SIGHUP that the
// caller ignores (nohup) stays ignored.
inline void install(const char* name) {
  tool = name;
  launch = parallel::launch_of_this_process();
  os::catch_signal(os::signals::timer, on_timer, true);
  // It blocks no other signal, so that a stopped process shows the signal (os::stop_state).
  for (const int s : {os::signals::interrupt, os::signals::terminate}) os::catch_signal(s, on_signal);
  if (!os::is_ignored(os::signals::hangup)) os::catch_signal(os::signals::hangup, on_signal);
}

}  // namespace stop_signals

// Whether a signal asked this process to end.
inline bool is_asked_to_stop() {
  return stop_signals::asked_at != 0;
}

class OrderlyStop {
 public:
  OrderlyStop() { stop_signals::is_orderly = true; }
  // A process that was asked meanwhile keeps its time to end, and so does a rank of launch: it may have
  // stopped because another rank was asked, before launch's own signal arrives here.
  ~OrderlyStop() {
    if (!is_asked_to_stop() && !stop_signals::launch) stop_signals::is_orderly = false;
  }
  OrderlyStop(const OrderlyStop&) = delete;
};

}  // namespace tg
