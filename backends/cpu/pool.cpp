#include "backends/cpu/pool.h"

#include <pthread.h>

#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
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
  try {
    for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
  } catch (const std::exception& e) {
    const std::size_t failed = workers_.size() + 2;  // the caller is the first thread
    end();
    throw DeviceError("[cpu] cannot start thread " + std::to_string(failed) + " of " +
                      std::to_string(threads) + ": " + e.what() +
                      "; ask for fewer threads, or set TG_THREADS");
  }
}

Pool::~Pool() {
  end();
}

void Pool::end() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& w : workers_) w.join();
}

void Pool::run(void (*f)(void*, int), void* data) {
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

namespace {

struct SharedPool {
  explicit SharedPool(int threads) : pool(threads) {}
  Pool pool;
  bool is_busy = true, in_user_function = false;
};

// The pools of the process, by their size.
class Pools {
 public:
  SharedPool& take(int threads) {
    std::unique_lock lock(mutex_);
    std::vector<std::unique_ptr<SharedPool>>& all = pools_[threads];
    for (;;) {
      // One in a user's function may be waiting for this very run.
      bool worth_waiting = false;
      for (const std::unique_ptr<SharedPool>& p : all) {
        if (!p->is_busy) {
          p->is_busy = true;
          return *p;
        }
        worth_waiting = worth_waiting || !p->in_user_function;
      }
      if (!worth_waiting) return *all.emplace_back(std::make_unique<SharedPool>(threads));
      changed_.wait(lock);
    }
  }
  void set(bool SharedPool::*what, SharedPool& pool, bool value) {
    const std::lock_guard lock(mutex_);
    pool.*what = value;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, std::vector<std::unique_ptr<SharedPool>>> pools_;
};

thread_local SharedPool* running = nullptr;  // the pool of the innermost run that this thread called

// Never destroyed; see run_on_pool.
Pools*& all_pools() {
  static Pools* pools = [] {
    // Of the parent's threads only the one that called fork() lives on in the child. Its locks may be held
    // for ever, so that nothing of the old pools may be touched.
    pthread_atfork(nullptr, nullptr, [] { all_pools() = new Pools; });
    return new Pools;
  }();
  return pools;
}

}  // namespace

void run_on_pool(int threads, void (*f)(void* data, int thread), void* data) {
  const struct Outer {
    SharedPool* pool = running;
    ~Outer() { running = pool; }
  } outer;
  running = nullptr;
  if (threads == 1) return f(data, 0);
  Pools& pools = *all_pools();
  running = &pools.take(threads);
  running->pool.run(f, data);
  pools.set(&SharedPool::is_busy, *running, false);
}

InUserFunction::InUserFunction() {
  if (running) all_pools()->set(&SharedPool::in_user_function, *running, true);
}
InUserFunction::~InUserFunction() {
  if (running) all_pools()->set(&SharedPool::in_user_function, *running, false);
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
