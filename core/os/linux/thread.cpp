#include "core/os/thread.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <thread>

namespace tg::os {

namespace {

// At most one move runs at a time in a process. The first move changes the allowed processors temporarily. A
// concurrent move might read this temporary set and restore it at the end.
std::atomic_flag is_moving = ATOMIC_FLAG_INIT;
struct Move {
  const bool may_begin = !is_moving.test_and_set(std::memory_order_acquire);
  ~Move() {
    if (may_begin) is_moving.clear(std::memory_order_release);
  }
};

// The system moves a thread immediately if it may no longer use its processor.
void allow_briefly(ThreadId thread, const cpu_set_t& processors, const cpu_set_t& before) {
  if (sched_setaffinity(thread, sizeof processors, &processors) == 0)
    sched_setaffinity(thread, sizeof before, &before);
}

}  // namespace

ThreadId current_thread() {
  return static_cast<ThreadId>(syscall(SYS_gettid));
}

int current_processor() {
  return sched_getcpu();
}

double processor_seconds(ThreadId thread) {
  // The number of a thread's clock on Linux, as pthread_getcpuclockid() computes it. That function cannot be
  // used for a thread that has ended.
  const clockid_t clock = static_cast<clockid_t>(~static_cast<unsigned>(thread) << 3 | 6);
  timespec t;
  if (clock_gettime(clock, &t) != 0) return -1;
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

void move_thread(ThreadId thread, int processor) {
  const Move move;
  cpu_set_t before, only;
  if (!move.may_begin || processor < 0 || sched_getaffinity(thread, sizeof before, &before) != 0) return;
  if (!CPU_ISSET(processor, &before)) return;
  CPU_ZERO(&only);
  CPU_SET(processor, &only);
  allow_briefly(thread, only, before);
}

void leave_processor(int processor, int processors) {
  const Move move;
  cpu_set_t before;
  if (!move.may_begin || processor < 0 || sched_getaffinity(0, sizeof before, &before) != 0) return;
  cpu_set_t others = before;
  CPU_CLR(processor, &others);
  if (CPU_COUNT(&before) >= processors && CPU_COUNT(&others) > 0) allow_briefly(0, others, before);
}

int usable_processors() {
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof usable, &usable) == 0 && CPU_COUNT(&usable) > 0) return CPU_COUNT(&usable);
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

void limit_processors(int count) {
  cpu_set_t all, first;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  CPU_ZERO(&first);
  for (int p = 0; p < CPU_SETSIZE && CPU_COUNT(&first) < count; ++p)
    if (CPU_ISSET(p, &all)) CPU_SET(p, &first);
  sched_setaffinity(0, sizeof first, &first);
}

void call_after_fork(void (*f)()) {
  pthread_atfork(nullptr, nullptr, f);
}

void wait_while_equal(const std::uint32_t* word, std::uint32_t value, bool shared, std::int64_t timeout_ns) {
  constexpr std::int64_t second = 1'000'000'000;
  const timespec limit{.tv_sec = timeout_ns / second, .tv_nsec = timeout_ns % second};
  const long result = syscall(SYS_futex, word, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, value,
                              timeout_ns < 0 ? nullptr : &limit, nullptr, 0);
  // Some systems that emulate Linux do not have futexes.
  if (result != 0 && errno == ENOSYS && __atomic_load_n(word, __ATOMIC_ACQUIRE) == value)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
}

void wake(const std::uint32_t* word, int count, bool shared) {
  syscall(SYS_futex, word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

}  // namespace tg::os
