// A persistent pool of threads that run jobs together.
#pragma once

#include <thread>
#include <vector>

#include "backends/cpu/team.h"

namespace tg::cpu {

class Pool {
 public:
  // `threads` includes the caller of run(). Throws DeviceError if the system cannot start the threads.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;

  int threads() const { return team_.threads; }
  // Team::run: the caller is thread 0. One caller at a time.
  void run(Job& job) { team_.run(job); }

 private:
  void end();
  Team team_;
  std::vector<std::thread> workers_;
};

// The largest number of threads that TG_THREADS and the tools accept.
inline constexpr int max_threads = 4096;

// Runs a job, as Pool::run does, on the process's pool of this size. The pool is created at first use and
// never destroyed, because a thread may still run when static objects are destroyed. Runs that need the same
// pool wait for each other. Any thread may call it. A process created by fork() makes its own pools.
void run_on_pool(int threads, Job& job);
// Calls f(data, part) for each part 0 … threads-1 on such a pool. f must not throw.
void run_on_pool(int threads, void (*f)(void* data, int part), void* data);

// While an instance exists, this thread executes a user's function that a run has called. The function may
// start another run and wait for it. That run does not wait for the pool. It uses a different pool.
class InUserFunction {
 public:
  InUserFunction();
  ~InUserFunction();
  InUserFunction(const InUserFunction&) = delete;
};

// Returns TG_THREADS, or otherwise the number of processors that this process may use.
int default_threads();

}  // namespace tg::cpu
