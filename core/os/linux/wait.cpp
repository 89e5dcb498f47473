#include "core/os/wait.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <thread>

namespace tg::os {

void wait_while_equal(const std::uint32_t* word, std::uint32_t value, bool shared, std::int64_t timeout_ns) {
  constexpr std::int64_t second = 1'000'000'000;
  const timespec limit{.tv_sec = timeout_ns / second, .tv_nsec = timeout_ns % second};
  const long result = syscall(SYS_futex, word, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, value,
                              timeout_ns < 0 ? nullptr : &limit, nullptr, 0);
  // Some systems that run Linux programs have no futex.
  if (result != 0 && errno == ENOSYS && __atomic_load_n(word, __ATOMIC_ACQUIRE) == value)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
}

void wake(const std::uint32_t* word, int count, bool shared) {
  syscall(SYS_futex, word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

}  // namespace tg::os
