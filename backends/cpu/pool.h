// A persistent pool of threads that all enter the same function at once.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace tg::cpu {

class Pool {
 public:
  explicit Pool(int threads);  // including the caller of run()
  ~Pool();
  Pool(const Pool&) = delete;

  int threads() const { return threads_; }
  // Calls f(data, t) once on each thread t = 0 … threads-1 (0 is the caller) and returns when all are done.
  // One caller at a time; f must not throw.
  void run(void (*f)(void* data, int thread), void* data);

 private:
  void work(int thread);
  const int threads_;
  std::mutex run_mutex_;
  void (*function_)(void*, int) = nullptr;
  void* data_ = nullptr;
  alignas(64) std::atomic<std::uint32_t> generation_{0};
  alignas(64) std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

// The process's pool of that size, created at first use.
Pool& pool(int threads);
// The most threads that TG_THREADS and the tools take.
inline constexpr int max_threads = 4096;
// TG_THREADS, or the number of processors that this process may use.
int default_threads();
// Pauses briefly inside a spin loop; yields the processor once the loop has spun many times.
void relax(int spins);

}  // namespace tg::cpu
