#include "backends/cpu/pool.h"

#include <charconv>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include <tilegrad/core/base/error.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

namespace tg::cpu {

void relax(int spins) {
  // On a virtual machine a core may be away for a while: spin, then yield, so that the other cores do not
  // burn its time.
  if (spins > 10000) {
    std::this_thread::yield();
    return;
  }
#if defined(__x86_64__)
  _mm_pause();
#endif
}

Pool::Pool(int threads) : threads_(threads) {
  for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
}

Pool::~Pool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& w : workers_) w.join();
}

void Pool::run(void (*f)(void*, int), void* data) {
  const std::lock_guard lock(run_mutex_);
  if (threads_ == 1) return f(data, 0);
  function_ = f;
  data_ = data;
  running_.store(threads_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  f(data, 0);
  for (int spins = 0; running_.load(std::memory_order_acquire) != 0; ++spins) relax(spins);
}

void Pool::work(int thread) {
  std::uint32_t seen = 0;
  for (;;) {
    // The next run usually comes within microseconds: spin for it first, then sleep.
    for (int spins = 0; generation_.load(std::memory_order_acquire) == seen && spins < 5000; ++spins)
      relax(spins);
    generation_.wait(seen, std::memory_order_acquire);
    ++seen;
    if (stop_.load(std::memory_order_relaxed)) return;
    function_(data_, thread);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

Pool& pool(int threads) {
  static std::mutex mutex;
  static std::map<int, std::unique_ptr<Pool>> pools;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Pool>& p = pools[threads];
  if (!p) p = std::make_unique<Pool>(threads);
  return *p;
}

int default_threads() {
  if (const char* s = std::getenv("TG_THREADS")) {
    const std::string_view text(s);
    int n = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error != std::errc() || end != text.data() + text.size() || n < 1 || n > max_threads)
      throw DeviceError("[cpu] TG_THREADS is '" + std::string(text) + "': expected a number from 1 to " +
                        std::to_string(max_threads));
    return n;
  }
#if defined(__linux__)
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof mine, &mine) == 0 && CPU_COUNT(&mine) > 0) return CPU_COUNT(&mine);
#endif
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace tg::cpu
