// Busy waiting for a limited time.
#pragma once

#include <chrono>

namespace tg {

// Hints to the processor that this thread is spinning.
inline void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

// Calls ready() until it returns true or `limit` has passed, and returns whether it was true. The limit does
// not depend on how long the processor pauses. A short wait does not read the clock.
template <class Ready>
bool spin_until(Ready&& ready, std::chrono::nanoseconds limit) {
  const auto spin = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      if (ready()) return true;
      pause_processor();
    }
    return false;
  };
  if (limit.count() == 0) return ready();
  if (spin(32)) return true;
  const auto end = std::chrono::steady_clock::now() + limit;
  do {
    if (spin(16)) return true;
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace tg
