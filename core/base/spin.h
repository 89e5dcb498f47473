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

// Calls ready() until it returns true or the time `limit` has passed. Returns whether it was true. The time
// limit is independent of the duration of the processor's pause instruction. A short wait does not read the
// clock.
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
