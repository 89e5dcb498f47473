// What SIGINT, SIGTERM and SIGHUP do to a tool that may have something to save. Usually they end it
// immediately. While an OrderlyStop exists the first one only asks: the tool has EndTimes to save and to end.
#pragma once

#include <poll.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <span>

#include "parallel/launch_board.h"

namespace tg {

namespace stop_signals {

inline const char* tool = "";
inline std::atomic<bool> is_orderly{false};
inline std::atomic<std::int64_t> asked_at{0};     // by monotonic_ms(); 0: not yet
inline const parallel::Launch* launch = nullptr;  // passes signals on

// GNU timeout and others send a signal twice, to the process and to its group.
constexpr std::int64_t same_request_ms = 200;

[[noreturn]] inline void die(int signal) {
  std::signal(signal, SIG_DFL);
  sigset_t set;
  sigemptyset(&set), sigaddset(&set, signal);
  ::kill(::getpid(), signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::_exit(128 + signal);
}

inline void set_timer(std::int64_t ms) {
  itimerval in{};
  in.it_value.tv_sec = static_cast<time_t>(ms / 1000);
  in.it_value.tv_usec = static_cast<suseconds_t>(ms % 1000 * 1000 + 1);  // 0 would stop it
  ::setitimer(ITIMER_REAL, &in, nullptr);
}

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
inline void on_timer(int) {
  const int error = errno;
  if (const std::int64_t ms = time_left()) {
    set_timer(ms);
    errno = error;
    return;
  }
  const char* const words[] = {tool, ": ended by its signal before it could stop in order\n"};
  pollfd room{STDERR_FILENO, POLLOUT, 0};  // not by stdio, which the program may hold
  if (::poll(&room, 1, 0) > 0 && (room.revents & POLLOUT))
    for (const char* w : words) (void)!::write(STDERR_FILENO, w, std::strlen(w));
  die(own_end_state().asked_by);
}

inline void on_signal(int signal, siginfo_t* info, void*) {
  const int error = errno;
  const std::int64_t now = monotonic_ms();
  if (std::int64_t none = 0; asked_at.compare_exchange_strong(none, now)) {
    own_end_state().asked_by = signal;  // launch looks there
    if (!is_orderly) die(signal);
    set_timer(time_left());
  } else if (!is_orderly ||
             (now - asked_at > same_request_ms && (!launch || info->si_pid != launch->process))) {
    die(signal);
  }
  errno = error;
}

// SIGINT is handled also if the caller ignores it, as scripts do for background processes. A SIGHUP that the
// caller ignores (nohup) stays ignored.
inline void install(const char* name) {
  tool = name;
  launch = parallel::launch_of_this_process();
  struct sigaction at_end {};
  at_end.sa_handler = on_timer, at_end.sa_flags = SA_RESTART;
  sigfillset(&at_end.sa_mask);
  ::sigaction(SIGALRM, &at_end, nullptr);
  struct sigaction action {
  }, before{};
  action.sa_sigaction = on_signal, action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigemptyset(&action.sa_mask);  // so that a stopped process shows the signal (parallel::stop_state)
  for (const int s : {SIGINT, SIGTERM, SIGHUP})
    if (::sigaction(s, nullptr, &before) == 0 && (s != SIGHUP || before.sa_handler != SIG_IGN))
      ::sigaction(s, &action, nullptr);
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
