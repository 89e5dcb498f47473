// A persistent pool of threads that all enter the same function at once.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

namespace tg::cpu {

class Pool {
 public:
  // `threads` includes the caller of run(). Throws DeviceError if the system does not give that many.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;

  int threads() const { return threads_; }
  // Calls f(data, t) once on each thread t = 0 … threads-1 (0 is the caller) and returns when all are done.
  // One caller at a time; f must not throw.
  void run(void (*f)(void* data, int thread), void* data);

 private:
  void work(int thread);
  void end();
  const int threads_;
  void (*function_)(void*, int) = nullptr;
  void* data_ = nullptr;
  alignas(64) std::atomic<std::uint32_t> generation_{0};
  alignas(64) std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

// The most threads that TG_THREADS and the tools take.
inline constexpr int max_threads = 4096;

// Pool::run on a pool of the process that has that size; it is created at first use and never ends, since a
// thread may still run when static objects are destroyed. Runs that need the same pool take turns. A process
// made by fork() makes pools of its own.
void run_on_pool(int threads, void (*f)(void* data, int thread), void* data);

// While alive, this thread is in a user's function, called from a run, that may itself wait for a run. Such
// runs do not wait for the pool: they get another.
class InUserFunction {
 public:
  InUserFunction();
  ~InUserFunction();
  InUserFunction(const InUserFunction&) = delete;
};

// TG_THREADS, or the number of processors that this process may use.
int default_threads();
// Pauses briefly inside a spin loop; yields the processor once the loop has spun many times.
void relax(int spins);

}  // namespace tg::cpu
