// What one thread of the pool sees while it runs a step: its number, its scratch memory, a barrier, and a
// shared queue of parts. All threads of a parallel step enter the same function ("single program, multiple
// data").
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>

namespace tg::cpu {

// The first index out of range that a run met: of the lowest step, and there at the lowest position. Which
// one that is does not depend on the number of threads.
class IndexFault {
 public:
  static constexpr int none = std::numeric_limits<int>::max();
  struct Found {
    std::int64_t index, size, position;
  };
  void clear() { step_.store(none, std::memory_order_relaxed); }
  void report(int step, const Found& found);
  // The step it was met in; `none` if there was none. Steps before the last barrier are all accounted for.
  int step() const { return step_.load(std::memory_order_relaxed); }
  const Found& found() const { return found_; }  // after the run

 private:
  std::mutex mutex_;
  std::atomic<int> step_{none};
  Found found_{};
};

// State shared by the threads of one run.
struct Team {
  explicit Team(int threads) : threads(threads) {}
  const int threads;
  static constexpr int queues = 4;  // calls of `each` and `each_in_order` between two barriers, at most
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<std::uint32_t> generation{0};

  // The parts of an `each` lie in stretches, one for each thread or, beyond eight, for a few neighbours.
  static constexpr int max_stretches = 8;
  const int stretches = threads < max_stretches ? threads : max_stretches;
  struct alignas(64) Stretch {
    std::atomic<std::int64_t> taken[2][queues] = {};  // [generation & 1][call]: parts handed out
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
  IndexFault* fault = nullptr;  // where check_index notes what it refuses

  // True if 0 ≤ index < size. Otherwise notes it, as element `position` of the indices: the kernel leaves out
  // what the index names, later steps do not run, and the run ends in an Error that names step and index.
  [[gnu::always_inline]] bool check_index(std::int64_t index, std::int64_t size, std::int64_t position) {
    if (static_cast<std::uint64_t>(index) < static_cast<std::uint64_t>(size)) return true;
    refuse_index(index, size, position);
    return false;
  }

  // Returns when every thread of the team has called it; orders all memory accesses before it.
  void barrier();

  // Calls f(part) once for each of the parts 0 … parts-1. A thread begins with a stretch of its own, which is
  // the same for the same number of parts, so that what it wrote in one step is in its cache in the next;
  // when that is done it helps with the others'. Each stretch goes in increasing order. Does not wait for the
  // others: call barrier() before reading what they wrote. Every thread of the team must call it.
  template <class F>
  void each(std::int64_t parts, F&& f) {
    share_out({parts}, f);
  }
  // The same with all parts in increasing order, each to whoever asks next: for parts that wait for earlier
  // ones.
  template <class F>
  void each_in_order(std::int64_t parts, F&& f) {
    share_out({parts, true}, f);
  }

 private:
  struct Share {  // how far this thread is in an each()
    std::int64_t parts;
    bool in_order = false;
    int queue = 0, stretches = 0;  // stretches it has come to
    std::int64_t first = 0, count = 0;
    std::atomic<std::int64_t>* taken = nullptr;  // of the stretch first … first + count - 1
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
  std::uint32_t generation_ = 0;
  int calls_ = 0;
};

}  // namespace tg::cpu
