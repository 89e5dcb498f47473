// A thread's view of the step that it runs: its scratch memory, a barrier, and a shared queue of parts. All
// threads that take part in a step enter the same function ("single program, multiple data"); team.h says
// which do.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>

#include "core/base/piece_size.h"

namespace tg::cpu {

// The first index out of range in a run: in the lowest step, and there at the lowest position. Which one that
// is does not depend on the number of threads.
class IndexFault {
 public:
  static constexpr int none = std::numeric_limits<int>::max();
  struct Found {
    std::int64_t index, size, position;
  };
  void clear() { step_.store(none, std::memory_order_relaxed); }
  void report(int step, const Found& found);
  // The step with the index; `none` if there is none. All steps before the last barrier are taken into
  // account.
  int step() const { return step_.load(std::memory_order_relaxed); }
  const Found& found() const { return found_; }  // after the run

 private:
  std::mutex mutex_;
  std::atomic<int> step_{none};
  Found found_{};
};

class Team;
enum class Turn;

// Kernels run on any number of threads of the team, and a thread may join a step late. So outside each() and
// each_in_order() a kernel's course depends only on the call, `threads` and what the step's parts in earlier
// phases wrote into `shared`. It must not depend on which thread runs it.
class Worker {
 public:
  Worker() : threads(1), team_(nullptr), thread_(0) {}  // for a step that one thread runs
  Worker(Team* team, int thread);
  Worker(const Worker&) = delete;

  const int threads;             // that may take part, at most
  std::byte* scratch = nullptr;  // this thread's own bytes, 64-byte aligned, contents undefined
  std::byte* shared = nullptr;   // the step's bytes, one block for all threads, 64-byte aligned, undefined

  int step = 0;                 // which step of the program runs
  IndexFault* fault = nullptr;  // where check_index reports an index out of range

  // True if 0 ≤ index < size. Otherwise reports it, as element `position` of the indices: the kernel skips
  // that index, later steps do not run, and the run ends in an Error that names step and index.
  [[gnu::always_inline]] bool check_index(std::int64_t index, std::int64_t size, std::int64_t position) {
    if (static_cast<std::uint64_t>(index) < static_cast<std::uint64_t>(size)) return true;
    refuse_index(index, size, position);
    return false;
  }

  // Ends a phase: returns true when all its parts are done. Orders all memory accesses before it. False: this
  // thread was late, and the others have ended the step without it. The kernel must then return at once; what
  // it works on may be gone.
  [[nodiscard]] bool barrier();

  // Calls f(part) once for each part 0 … parts-1. A thread begins with a stretch of its own. The stretch
  // depends on the number of parts only, so that what the thread wrote in one step is in its cache in the
  // next. When its stretch is used up, it helps with the others. Parts of a stretch are handed out in
  // increasing order. each() does not wait for the other threads: call barrier() before reading what they
  // wrote. At most 4 calls of each() and each_in_order() fit between two barriers.
  template <class F>
  void each(std::int64_t parts, F&& f) {
    share_out({parts}, f);
  }
  // The same with all parts handed out in increasing order: for parts that wait for earlier ones by await().
  template <class F>
  void each_in_order(std::int64_t parts, F&& f) {
    share_out({parts, true}, f);
  }
  // Waits until an earlier part has set the counter to `value` by advance(). Orders all memory accesses of
  // that part before it.
  void await(const std::atomic<std::uint32_t>& counter, std::uint32_t value);
  void advance(std::atomic<std::uint32_t>& counter, std::uint32_t value);

  // 0 … threads-1. Not for kernels: the results of a step must not depend on it.
  int thread() const { return thread_; }

 private:
  struct Share {  // how far this thread is in an each()
    std::int64_t parts;
    bool in_order = false;
    int queue = 0, stretches = 0;                // which call this is; stretches visited so far
    std::int64_t first = 0, count = 0;           // the current stretch: parts first … first + count - 1
    std::atomic<std::int64_t>* taken = nullptr;  // its counter; null before the first stretch
  };
  static constexpr std::int64_t no_part = -1;
  template <class F>
  void share_out(Share share, F& f) {
    for (std::int64_t part; (part = next_part(share)) != no_part;) f(part);  // f is inlined once
  }
  std::int64_t next_part(Share& share) {
    if (threads > 1) return next_shared_part(share);
    return share.first < share.parts ? share.first++ : no_part;
  }
  std::int64_t next_shared_part(Share& share);
  int next_queue();
  void refuse_index(std::int64_t index, std::int64_t size, std::int64_t position);
  friend class Team;
  void begin(std::uint32_t first);

  Team* const team_;         // null: this thread runs the step alone
  const int thread_;         // 0 … threads-1
  std::uint32_t phase_ = 0;  // where this thread is in the step
  std::uint32_t joined_ =
      0;  // the phase that it has joined; not before phase_. Parts of earlier ones are done
  std::uint32_t first_ = 0;  // phase of the step
  int calls_ = 0;            // of each() and each_in_order() in this phase
  bool has_left_ = false;
  Turn turn_{};  // if it has left: what it does next
  int id_ = 0;   // the system's number of this thread; core/os/thread.h
};

}  // namespace tg::cpu
