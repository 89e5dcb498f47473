// The threads of a pool while they work together: which of them take part in a stage, who has its parts, and
// how they wait.
//
// A run is a sequence of stages. A stage has one or more phases, with a barrier after each. The number of
// threads in a phase is not fixed: a thread joins an open phase, takes parts until none is left, and arrives
// at its end. The first arrival closes the phase, because all parts are taken then. The last thread to arrive
// ends it. So nobody waits for a thread that holds no part: one that sleeps, or that the system does not
// schedule, joins a later phase.
//
// Two rules help on a machine with other processes. Both move threads to another processor
// (core/os/thread.h). If a thread waits for one that holds a part but does not run, it moves that thread to
// its own processor before it sleeps. If a thread is woken on the processor of the thread that woke it, it
// leaves this processor.
//
// The thread that ends a phase holds the baton: no other thread is in a phase, and none can join one. It
// resets the counters of parts. At the end of a stage it also runs the steps that need no other thread, and
// opens the next stage.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "backends/cpu/worker.h"
#include "core/os/thread.h"

namespace tg::cpu {

enum class Turn { stage, baton, ended };  // what a thread does next; ended: it returns

// The work of a run.
class Job {
 public:
  static constexpr int end = -1, for_caller = -2;
  // Runs the steps that one thread runs, and returns the next stage that threads share, or `end`. If the next
  // step must run on thread 0 and `thread` is not 0, returns `for_caller`; next() is then called again on
  // thread 0. Called at the beginning of a run, on thread 0, and after each stage. No other thread runs the
  // job meanwhile.
  virtual int next(int thread) = 0;
  // A thread's share of a stage. Called by any number of threads at once, perhaps never by some. May be
  // called again by the same thread in the same stage. Returns immediately after a barrier() that returned
  // false: the job may have ended by then.
  virtual void share(Worker& worker, int stage) = 0;

 protected:
  ~Job() = default;
};

class Team {
 public:
  explicit Team(int threads);
  Team(const Team&) = delete;
  const int threads;

  // Runs a job; the caller is thread 0. One caller at a time. Returns when no thread uses the job any more.
  void run(Job& job);
  // Takes part in runs as that thread, until stop().
  void work(int thread);
  void stop();  // while there is no run

 private:
  friend class Worker;

  // Waits until the worker has joined an open phase, or thread 0 has the baton, or there is nothing left to
  // do.
  Turn join(Worker& w);
  // At the end of a phase. True for the last thread, which then has the baton.
  bool arrive(const Worker& w);
  Turn advance(Worker& w);
  void take_turns(Worker& w, Turn turn);
  std::uint32_t open_phase(const Worker& w);  // with the baton; the opener has joined it
  void reset_counters();
  std::uint32_t publish(std::uint64_t low);
  void await(const Worker& w, const std::atomic<std::uint32_t>& counter, std::uint32_t value);
  void wake();
  template <class Ready>
  void wait_until(const Worker& w, Ready&& ready);
  template <class Ready>
  bool help_preempted(const Worker& w, Ready&& ready);  // true if ready() returned true meanwhile
  void leave_waker(const Worker& w);

  // The phase's number (32 bits), the threads that have arrived at its end (16) and those that have joined it
  // (16). Without any that joined, the second field is the reason why it is not open.
  alignas(64) std::atomic<std::uint64_t> state_;
  // Odd if a thread sleeps, or is about to. Whoever makes it even wakes all.
  alignas(64) std::atomic<std::uint32_t> sleep_{0};

  // On which processor the thread runs that last woke the others.
  std::atomic<int> waker_{-1};

  // How long a thread spins before it sleeps. After a wait that ended in sleep, the limit is a quarter,
  // otherwise twice as long. If each thread has a free processor, most waits are short. If not, spinning uses
  // processor time that the awaited thread needs.
  static constexpr std::chrono::microseconds longest_spin{50}, shortest_spin{3};
  // Before a thread sleeps, it watches for this time whether a few threads that hold parts are running. Moves
  // a thread away from its waker at most once in `between_moves`, because a move costs about 20 µs.
  static constexpr std::chrono::microseconds watch{10}, between_moves{1000};
  static constexpr int watched = 4;
  struct alignas(64) ThreadState {
    // Who it is while it has joined a phase; written by this thread only.
    std::atomic<os::ThreadId> working{0};
    std::chrono::microseconds spin = longest_spin;    // used by this thread only
    std::chrono::steady_clock::time_point last_move;  // likewise
  };
  ThreadState& own_state(const Worker& w) { return thread_states_[static_cast<std::size_t>(w.thread())]; }
  const std::unique_ptr<ThreadState[]> thread_states_;  // [threads]

  // Written with the baton, read by threads that have joined.
  Job* job_ = nullptr;
  int stage_ = 0;
  std::uint32_t first_ = 0;  // the stage's first phase

  // The parts of an `each` are divided into stretches: one for each thread, or beyond eight threads one for a
  // few neighbouring threads. A counter has the number of parts of a stretch that were handed out. fetch_add
  // gives each value to one thread, so each part is handed out once. If the value is at least the number of
  // parts, the stretch is used up, and stays so until the end of the phase. Only threads that have joined a
  // phase use its counters. The counters order no other memory (relaxed): results of a part are read after a
  // barrier.
  static constexpr int max_stretches = 8, queues = 4;  // queues: calls of `each` in a phase, at most
  const int stretches_ = threads < max_stretches ? threads : max_stretches;
  struct alignas(64) Stretch {
    std::atomic<std::int64_t> taken[queues] = {};
  };
  Stretch stretch_[max_stretches];
};

}  // namespace tg::cpu
