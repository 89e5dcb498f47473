#include "backends/cpu/pool.h"

#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include <tilegrad/core/base/error.h>
#include "core/os/thread.h"

namespace tg::cpu {

Pool::Pool(int threads) : team_(threads) {
  try {
    for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { team_.work(t); });
  } catch (const std::exception& e) {
    const std::size_t failed = workers_.size() + 2;  // the caller is the first thread
    end();
    throw DeviceError("[cpu] cannot start thread " + std::to_string(failed) + " of " +
                      std::to_string(threads) + ": " + e.what() +
                      "; request fewer threads, or set TG_THREADS");
  }
}

Pool::~Pool() {
  end();
}

void Pool::end() {
  team_.stop();
  for (std::thread& w : workers_) w.join();
}

namespace {

struct SharedPool {
  explicit SharedPool(int threads) : pool(threads) {}
  Pool pool;
  bool is_busy = true, in_user_function = false;
};

// The pools of the process, by size.
class Pools {
 public:
  SharedPool& take(int threads) {
    std::unique_lock lock(mutex_);
    std::vector<std::unique_ptr<SharedPool>>& all = pools_[threads];
    for (;;) {
      // Whether to wait for a pool. A pool that runs a user's function is not worth waiting for, because that
      // function may itself be waiting for this run.
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
    // The child process has only one thread, the thread that called fork(). Locks of the old pools may be
    // held forever, so the old pools must not be accessed.
    os::call_after_fork([] { all_pools() = new Pools; });
    return new Pools;
  }();
  return pools;
}

}  // namespace

void run_on_pool(int threads, Job& job) {
  const struct Outer {
    SharedPool* pool = running;
    ~Outer() { running = pool; }
  } outer;
  running = nullptr;
  if (threads == 1) {  // no pool: such runs need not wait for each other
    Worker w;
    for (int stage; (stage = job.next(0)) != Job::end;) job.share(w, stage);
    return;
  }
  Pools& pools = *all_pools();
  running = &pools.take(threads);
  running->pool.run(job);
  pools.set(&SharedPool::is_busy, *running, false);
}

void run_on_pool(int threads, void (*f)(void* data, int part), void* data) {
  struct Parts final : Job {
    int next(int) override { return std::exchange(stage, end); }
    void share(Worker& w, int) override {
      w.each(w.threads, [&](std::int64_t part) { f(data, static_cast<int>(part)); });
    }
    void (*f)(void*, int);
    void* data;
    int stage = 0;
  } parts;
  parts.f = f, parts.data = data;
  run_on_pool(threads, parts);
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
  return os::usable_processors();
}

}  // namespace tg::cpu
