// Virtual time for the thread of a test. While a VirtualTime exists, poll() and sleeps return immediately.
// They advance the clock to the time at which they would return, and run all scripted events up to this time.
// So tests check timeouts to the millisecond without waiting. Other threads use real time.
//
// The functions below replace the system's functions in the complete executable. Include this file only once.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tg::testing {

// The system's poll().
inline int poll_really(pollfd* fds, nfds_t count, int ms) {
  timespec limit{.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1'000'000};
  return static_cast<int>(::syscall(SYS_ppoll, fds, count, ms < 0 ? nullptr : &limit, nullptr, 0));
}

class VirtualTime {
 public:
  VirtualTime() { current = this; }
  ~VirtualTime() { current = nullptr; }
  VirtualTime(const VirtualTime&) = delete;

  // Runs f while the code under test waits, at this time in ms from the beginning.
  void at(std::int64_t ms, std::function<void()> f) { events_.emplace(ms * 1'000'000, std::move(f)); }
  std::int64_t now() const { return now_ / 1'000'000; }
  void pass(std::int64_t ms) { now_ += ms * 1'000'000; }

  std::vector<std::int64_t> naps;   // duration of each sleep in ms
  std::vector<std::size_t> corked;  // sizes of the messages that were sent with MSG_MORE
  int next_recv_error = 0;          // if not 0, the next recv() fails with this error
  int next_poll_error = 0;          // if not 0, the next poll() fails with this error
  int grace = 0;                    // real time in ms that poll() waits for messages in flight

  static inline thread_local VirtualTime* current = nullptr;

  int poll(pollfd* fds, nfds_t count, int timeout) {
    if (++polls_ > 100'000) std::abort();  // the code under test waits in an endless loop
    if (next_poll_error != 0) return errno = std::exchange(next_poll_error, 0), -1;
    const std::int64_t end = timeout < 0 ? INT64_MAX : now_ + std::int64_t{timeout} * 1'000'000;
    for (;;) {
      const int ready = poll_really(fds, count, timeout == 0 ? 0 : grace);
      if (ready != 0) return ready;
      if (!runs_event_until(end)) return 0;
    }
  }
  int recv_error() {
    if (++recvs_ > 1'000'000) std::abort();  // an endless loop, as in poll()
    return std::exchange(next_recv_error, 0);
  }
  void sleep(std::int64_t ns) {
    naps.push_back(ns / 1'000'000);
    const std::int64_t end = now_ + ns;
    while (runs_event_until(end)) {
    }
  }
  timespec clock() const {
    const std::int64_t ns = start + now_;
    return {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  }

 private:
  bool runs_event_until(std::int64_t end) {
    if (events_.empty() || events_.begin()->first > end) {
      now_ = std::max(now_, end);
      return false;
    }
    const auto event = events_.extract(events_.begin());
    now_ = std::max(now_, event.key());
    event.mapped()();
    return true;
  }

  static constexpr std::int64_t start = 3'600'000'000'000;
  std::int64_t now_ = 0, polls_ = 0, recvs_ = 0;
  std::multimap<std::int64_t, std::function<void()>> events_;
};

}  // namespace tg::testing

extern "C" int poll(pollfd* fds, nfds_t count, int timeout) {
  if (auto* t = tg::testing::VirtualTime::current) return t->poll(fds, count, timeout);
  return tg::testing::poll_really(fds, count, timeout);
}
extern "C" int nanosleep(const timespec* wanted, timespec* left) {
  if (auto* t = tg::testing::VirtualTime::current)
    return t->sleep(std::int64_t{wanted->tv_sec} * 1'000'000'000 + wanted->tv_nsec), 0;
  return static_cast<int>(::syscall(SYS_nanosleep, wanted, left));
}
extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  auto* t = tg::testing::VirtualTime::current;
  if (t && clock == CLOCK_MONOTONIC) return *now = t->clock(), 0;
  return static_cast<int>(::syscall(SYS_clock_gettime, clock, now));
}
extern "C" ssize_t send(int socket, const void* bytes, size_t size, int flags) {
  if (auto* t = tg::testing::VirtualTime::current; t && (flags & MSG_MORE) != 0) t->corked.push_back(size);
  return ::syscall(SYS_sendto, socket, bytes, size, flags, nullptr, 0);
}
extern "C" ssize_t recv(int socket, void* bytes, size_t size, int flags) {
  if (auto* t = tg::testing::VirtualTime::current)
    if (const int error = t->recv_error(); error != 0) return errno = error, -1;
  return ::syscall(SYS_recvfrom, socket, bytes, size, flags, nullptr, nullptr);
}
