// Batches prepared ahead of time by a separate thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace tg::train {

struct TokenBatch {
  std::vector<std::int32_t> x, y;  // tokens and targets
};

// next() gives batches first, first + 1, … to the last, each what `fill` makes of its number and of nothing
// else, so that what comes out does not depend on the timing. The thread fills up to `ahead` of them and then
// sleeps until half are taken, so that it wakes rarely.
class Prefetch {
 public:
  // Writes batch `number`; x and y have `size` tokens each. Called on the thread, for one number at a time.
  using Fill = std::function<void(std::int64_t number, std::span<std::int32_t> x, std::span<std::int32_t> y)>;

  static constexpr std::size_t default_ahead = 4;
  Prefetch(std::int64_t first, std::int64_t last, std::size_t size, Fill fill,
           std::size_t ahead = default_ahead);
  ~Prefetch();  // without waiting for batches that nobody took
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  // What it takes for batches of `size` tokens.
  static std::size_t bytes(std::size_t size) { return 2 * sizeof(std::int32_t) * size * (default_ahead + 1); }

  // Good until the next call. Throws what fill threw for this batch, and Error after the last one.
  const TokenBatch& next();

 private:
  void work();

  const std::int64_t last_;
  const Fill fill_;
  std::vector<TokenBatch> ring_;  // batch n is in place n % size; one more than are filled ahead
  std::int64_t taken_;            // the number that next() gives next
  std::int64_t filled_;           // the number that is filled next
  std::exception_ptr failure_;    // of batch filled_
  bool stop_ = false;
  std::mutex mutex_;
  std::condition_variable wake_thread_, wake_taker_;
  std::thread thread_;
};

}  // namespace tg::train
