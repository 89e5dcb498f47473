// A thread's view of the step that it runs: its scratch memory, a barrier, and a shared queue of parts. All
// threads that participate in a step call the same function ("single program, multiple data"). team.h
// determines which threads participate.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>

#include "core/base/piece_size.h"

namespace tg::cpu {

// The first index out of range in a run. It is the index with the lowest position in the earliest step, for
// any number of threads.
class IndexFault {
 public:
  static constexpr int none = std::numeric_limits<int>::max();
  struct Found {
    std::int64_t index, size, position;
    // For an index of a score or mask function: the captured tensor, its axis, and b, h, i and t of the pair.
    int captured = -1, axis = 0;
    std::int64_t pair[4] = {};
  };
  void clear() { step_.store(none, std::memory_order_relaxed); }
  void report(int step, const Found& found);
  // Returns the step with the index, or `none`. Faults of all steps before the last barrier are included.
  int step() const { return step_.load(std::memory_order_relaxed); }
  const Found& found() const { return found_; }  // valid after the run

 private:
  std::mutex mutex_;
  std::atomic<int> step_{none};
  Found found_{};
};

class Team;
enum class Action;

// A kernel runs on any number of threads of the team, and a thread may join a step late. Outside of each()
// and each_in_order(), the control flow of a kernel may therefore depend only on three things: the call,
// `threads`, and data in `shared` that earlier phases have written. It must not depend on the thread that
// runs it.
class Worker {
 public:
  Worker() : threads(1), team_(nullptr), thread_(0) {}  // worker of a step that one thread runs
  Worker(Team* team, int thread);
  Worker(const Worker&) = delete;

  const int threads;             // maximum number of participating threads
  std::byte* scratch = nullptr;  // this thread's own bytes, 64-byte aligned, contents undefined
  std::byte* shared = nullptr;   // the step's bytes, one block for all threads, 64-byte aligned, undefined

  int step = 0;                 // index of the running step
  IndexFault* fault = nullptr;  // where check_index reports an index out of range

  // Returns true if 0 ≤ index < size. Otherwise reports the index as element `position` of the indices. The
  // kernel must skip this index. Later steps do not run, and the run throws an Error with the step and the
  // index.
  [[gnu::always_inline]] bool check_index(std::int64_t index, std::int64_t size, std::int64_t position) {
    if (static_cast<std::uint64_t>(index) < static_cast<std::uint64_t>(size)) return true;
    refuse_index({index, size, position});
    return false;
  }
  void refuse_index(const IndexFault::Found& found);

  // Ends a phase. Returns true when all parts of the phase are done. Memory accesses before the barrier are
  // ordered before accesses after it. Returns false if the other threads have ended the step without this
  // thread because it was late. The kernel must then return immediately, because its memory may have been
  // freed.
  [[nodiscard]] bool barrier();

  // Calls f(part) once for each part 0 … parts-1. A thread begins with its own range. The range depends only
  // on the number of parts, so data that the thread wrote in one step is in its cache in the next. When this
  // range is exhausted, the thread continues with other ranges. Parts of a range are handed out in increasing
  // order. each() does not wait for the other threads: call barrier() before reading their results. At most 4
  // calls of each() and each_in_order() are allowed between two barriers.
  template <class F>
  void each(std::int64_t parts, F&& f) {
    share_out({parts}, f);
  }
  // Like each(), but hands out all parts in increasing order. Parts may wait for earlier parts by await().
  template <class F>
  void each_in_order(std::int64_t parts, F&& f) {
    share_out({parts, true}, f);
  }
  // Waits until an earlier part has set the counter to `value` with advance(). Memory accesses of that part
  // are ordered before accesses after await().
  void await(const std::atomic<std::uint32_t>& counter, std::uint32_t value);
  void advance(std::atomic<std::uint32_t>& counter, std::uint32_t value);

  // The thread's number, 0 … threads-1. Kernels must not use it, because results must not depend on it.
  int thread() const { return thread_; }

 private:
  struct Share {  // progress of this thread in an each()
    std::int64_t parts;
    bool in_order = false;
    int queue = 0, stretches = 0;                // index of this call; number of ranges visited so far
    std::int64_t first = 0, count = 0;           // the current range: parts first … first + count - 1
    std::atomic<std::int64_t>* taken = nullptr;  // its counter; null before the first range
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

  Team* const team_;          // null: this thread runs the step by itself
  const int thread_;          // 0 … threads-1
  std::uint32_t phase_ = 0;   // progress of this thread in the step
  std::uint32_t joined_ = 0;  // the joined phase; at least phase_
  std::uint32_t first_ = 0;   // first phase of the step
  int calls_ = 0;             // calls of each() and each_in_order() in this phase
  bool has_left_ = false;
  Action action_{};  // the thread's next action, if has_left_
  int id_ = 0;       // the system's ID of this thread; core/os/thread.h
};

}  // namespace tg::cpu
