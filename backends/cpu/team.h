// The threads of a pool during a run. This header determines which threads participate in a stage, how parts
// are handed out, and how threads wait.
//
// A run is a sequence of stages. A stage has one or more phases, with a barrier after each. The number of
// threads in a phase is not fixed. A thread joins an open phase, processes parts until none is left, and
// arrives at its end. The first arrival closes the phase, because all parts have been handed out by then. The
// last arrival ends the phase. A thread that sleeps or is not scheduled joins a later phase, so no thread
// waits for a thread without a part.
//
// Two rules help on a machine that runs other processes. Both move threads to a different processor
// (core/os/thread.h). If a thread waits for a thread that has a part but is not running, it moves that thread
// to its own processor before it sleeps. If a thread wakes up on the processor of the thread that woke it, it
// moves to a different processor.
//
// The thread that ends a phase holds the baton. While it holds the baton, no other thread is in a phase or
// can join one. The holder resets the counters of parts. At the end of a stage, it also runs the steps that
// need no other thread, and then opens the next stage.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "backends/cpu/worker.h"
#include "core/os/thread.h"

namespace tg::cpu {

enum class Action { stage, baton, ended };  // next action of a thread; ended: it returns

// The work of a run.
class Job {
 public:
  static constexpr int end = -1, for_caller = -2;
  // Runs the single-threaded steps, and returns the next stage that threads share, or `end`. If the next step
  // must run on thread 0 and `thread` is not 0, returns `for_caller`. next() is then called again on thread
  // 0. It is called on thread 0 at the beginning of a run, and on any thread after each stage. No other
  // thread runs the job during the call.
  virtual int next(int thread) = 0;
  // Runs a thread's share of a stage. Any number of threads call it concurrently, and some may never call it.
  // A thread may call it again in the same stage. If barrier() returns false, share() must return
  // immediately, because the job may have ended.
  virtual void share(Worker& worker, int stage) = 0;

 protected:
  ~Job() = default;
};

class Team {
 public:
  explicit Team(int threads);
  Team(const Team&) = delete;
  const int threads;

  // Runs a job. The caller is thread 0. One caller at a time. Returns when no thread uses the job any more.
  void run(Job& job);
  // Participates in runs as thread number `thread`, until stop() is called.
  void work(int thread);
  void stop();  // must not be called during a run

 private:
  friend class Worker;

  // Waits until the worker has joined an open phase, thread 0 has the baton, or there is no more work.
  Action join(Worker& w);
  // Called at the end of a phase. Returns true for the last thread. This thread then has the baton.
  bool arrive(const Worker& w);
  Action advance(Worker& w);
  void run_actions(Worker& w, Action action);
  std::uint32_t open_phase(const Worker& w);  // requires the baton; the opener has joined the phase
  void reset_counters();
  std::uint32_t publish(std::uint64_t low);
  void await(const Worker& w, const std::atomic<std::uint32_t>& counter, std::uint32_t value);
  void wake();
  template <class Ready>
  void wait_until(const Worker& w, Ready&& ready);
  template <class Ready>
  bool help_preempted(const Worker& w, Ready&& ready);  // returns true if ready() does
  void leave_waker(const Worker& w);

  // The phase's number (32 bits), the number of threads that have arrived at its end (16 bits), and the
  // number of threads that have joined it (16 bits). If no thread has joined, the second field contains the
  // reason why the phase is not open.
  alignas(64) std::atomic<std::uint64_t> state_;
  // This number is odd if a thread sleeps or is about to sleep. The thread that makes it even wakes all
  // sleeping threads.
  alignas(64) std::atomic<std::uint32_t> sleep_{0};

  // The processor of the thread that last woke the others.
  std::atomic<int> waker_{-1};

  // The time that a thread spins before it sleeps. After a wait that ended in sleep, the limit is divided by
  // four. After any other wait, it is doubled. If each thread has a free processor, most waits are short.
  // Otherwise spinning uses processor time that the awaited thread needs.
  static constexpr std::chrono::microseconds longest_spin{50}, shortest_spin{3};
  // Before a thread sleeps, it watches a few threads with parts for this time and checks that they are
  // running. A thread leaves its waker's processor at most once per `between_moves`, because a move costs
  // about 20 µs.
  static constexpr std::chrono::microseconds watch{10}, between_moves{1000};
  static constexpr int watched = 4;
  struct alignas(64) ThreadState {
    // The thread's ID while it has joined a phase. Written only by this thread.
    std::atomic<os::ThreadId> working{0};
    std::chrono::microseconds spin = longest_spin;    // used only by this thread
    std::chrono::steady_clock::time_point last_move;  // used only by this thread
  };
  ThreadState& own_state(const Worker& w) { return thread_states_[static_cast<std::size_t>(w.thread())]; }
  const std::unique_ptr<ThreadState[]> thread_states_;  // [threads]

  // Written with the baton, read by threads that have joined.
  Job* job_ = nullptr;
  int stage_ = 0;
  std::uint32_t first_ = 0;  // the stage's first phase

  // The parts of an `each` call are divided into ranges. With up to eight threads, each thread has a range.
  // With more, a few adjacent threads share a range. Each range has a counter of the parts that were handed
  // out. fetch_add returns each value to only one thread, so each part is handed out once. If the value is at
  // least the number of parts, the range is exhausted until the end of the phase. Only threads that have
  // joined a phase use the counters of that phase. The accesses are relaxed, because a barrier orders the
  // results of parts.
  static constexpr int max_stretches = 8, queues = 4;  // queues: maximum number of `each` calls in a phase
  const int stretches_ = threads < max_stretches ? threads : max_stretches;
  struct alignas(64) Stretch {
    std::atomic<std::int64_t> taken[queues] = {};
  };
  Stretch stretch_[max_stretches];
};

}  // namespace tg::cpu
