// A persistent pool of threads that run jobs together.
#pragma once

#include <thread>
#include <vector>

#include "backends/cpu/team.h"

namespace tg::cpu {

class Pool {
 public:
  // `threads` includes the caller of run(). Throws DeviceError if the system does not give that many.
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

// The most threads that TG_THREADS and the tools take.
inline constexpr int max_threads = 4096;

// Pool::run on a pool of the process that has that size; it is created at first use and never ends, since a
// thread may still run when static objects are destroyed. Runs that need the same pool take turns. Any thread
// may call it. A process made by fork() makes pools of its own.
void run_on_pool(int threads, Job& job);
// Calls f(data, part) for each part 0 … threads-1 on such a pool; f must not throw.
void run_on_pool(int threads, void (*f)(void* data, int part), void* data);

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

}  // namespace tg::cpu
