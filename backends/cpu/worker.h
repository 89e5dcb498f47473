// A thread's view of the step that it runs: its number, its scratch memory, a barrier, and a shared queue of
// parts. All threads of a parallel step enter the same function ("single program, multiple data").
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>

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

// State shared by the threads of one run. Every thread of the team makes the same sequence of calls to
// each(), each_in_order() and barrier(). That is why a thread can number its calls on its own and still agree
// with the others on which counters a call uses.
struct Team {
  explicit Team(int threads) : threads(threads) {}
  const int threads;
  static constexpr int queues = 4;  // calls of `each` and `each_in_order` between two barriers, at most
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<std::uint32_t> generation{0};

  // The parts of an `each` are divided into stretches: one for each thread, or beyond eight threads one for a
  // few neighbouring threads.
  //
  // taken[generation & 1][call] counts the parts of a stretch that were handed out. Invariants:
  // - It only grows while its call runs. fetch_add gives each value to one thread, so each part is handed out
  // once.
  //   A value of at least the stretch's number of parts means that the stretch is used up; it stays so.
  // - In generation g threads touch only taken[g & 1]. The last thread to arrive at the barrier that ends g
  // resets
  //   those counters before it releases the others. They are used again in g + 2, which no thread enters
  //   before all have passed the barrier that ends g + 1: every thread sees zeros.
  // Counters need no ordering of their own (relaxed): a part's results are read after a barrier, which orders
  // them.
  static constexpr int max_stretches = 8;
  const int stretches = threads < max_stretches ? threads : max_stretches;
  struct alignas(64) Stretch {
    std::atomic<std::int64_t> taken[2][queues] = {};
  };
  Stretch stretch[max_stretches];
};

class Worker {
 public:
  Worker(Team& team, int thread) : thread(thread), threads(team.threads), team_(team) {}

  const int thread;  // 0 … threads-1
  const int threads;
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

  // Returns when every thread of the team has called it; orders all memory accesses before it.
  void barrier();

  // Calls f(part) once for each part 0 … parts-1. A thread begins with a stretch of its own. The stretch
  // depends on the number of parts only, so that what the thread wrote in one step is in its cache in the
  // next. When its stretch is used up, it helps with the others. Parts of a stretch are handed out in
  // increasing order. each() does not wait for the other threads: call barrier() before reading what they
  // wrote. Every thread of the team must call it.
  template <class F>
  void each(std::int64_t parts, F&& f) {
    share_out({parts}, f);
  }
  // The same with all parts handed out in increasing order: for parts that wait for earlier ones.
  template <class F>
  void each_in_order(std::int64_t parts, F&& f) {
    share_out({parts, true}, f);
  }

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
  Team& team_;
  std::uint32_t generation_ = 0;  // barriers passed
  int calls_ = 0;                 // of each() and each_in_order() since the last barrier
};

}  // namespace tg::cpu
