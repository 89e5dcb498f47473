// Handles SIGINT, SIGTERM and SIGHUP in tools that may have something to save. By default these signals end
// the tool immediately. While an OrderlyStop exists, the first signal is only a request. The tool then has
// the time limits of EndTimes to save and exit.
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
inline std::atomic<std::int64_t> asked_at{0};     // time of the request by monotonic_ms(); 0: none
inline const parallel::Launch* launch = nullptr;  // receives a copy of each signal

// A signal within this time after the first one counts as the same request. GNU timeout and other programs
// send a signal twice: to the process and to its group.
constexpr std::int64_t same_request_ms = 200;

// Time in ms until the deadline must be checked again. The deadline is extended while a rank saves, because
// other ranks may wait for that rank.
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

// Ends the process if its time is over. The process may be waiting for a rank, a reader of its output, or a
// disk.
inline void on_timer(int, os::ProcessId) {
  if (const std::int64_t ms = time_left()) return os::set_timer(ms);
  const char* const words[] = {tool, ": killed by its signal because it did not stop in time\n"};
  if (os::has_room(os::standard_error))  // does not use stdio, because the program may hold its lock
    for (const char* w : words) os::write_some(os::standard_error, w);
  os::end_by_signal(own_end_state().asked_by);
}

inline void on_signal(int signal, os::ProcessId sender) {
  const std::int64_t now = monotonic_ms();
  if (std::int64_t none = 0; asked_at.compare_exchange_strong(none, now)) {
    own_end_state().asked_by = signal;  // launch reads it
    if (!is_orderly) os::end_by_signal(signal);
    os::set_timer(time_left());
  } else if (!is_orderly || (now - asked_at > same_request_ms && (!launch || sender != launch->process))) {
    os::end_by_signal(signal);
  }
}

// SIGINT is handled even if the caller ignores it, as scripts do for background processes. A SIGHUP that the
// caller ignores (nohup) stays ignored.
inline void install(const char* name) {
  tool = name;
  launch = parallel::launch_of_this_process();
  os::catch_signal(os::signals::timer, on_timer, true);
  // The handler does not block other signals. If the process is stopped, they are therefore visible as
  // pending (os::stop_state).
  for (const int s : {os::signals::interrupt, os::signals::terminate}) os::catch_signal(s, on_signal);
  if (!os::is_ignored(os::signals::hangup)) os::catch_signal(os::signals::hangup, on_signal);
}

}  // namespace stop_signals

// Whether a signal has asked this process to stop.
inline bool is_asked_to_stop() {
  return stop_signals::asked_at != 0;
}

class OrderlyStop {
 public:
  OrderlyStop() { stop_signals::is_orderly = true; }
  // If the process received a request, its time limit to exit remains. It also remains for a rank of launch.
  // Such a rank may have stopped because another rank received the signal, before launch's signal arrives.
  ~OrderlyStop() {
    if (!is_asked_to_stop() && !stop_signals::launch) stop_signals::is_orderly = false;
  }
  OrderlyStop(const OrderlyStop&) = delete;
};

}  // namespace tg
