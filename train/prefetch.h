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

// next() returns batches first, first + 1, … up to the last. `fill` computes a batch from its number and
// nothing else, so that the batches do not depend on timing. The thread fills up to `ahead` of them and then
// sleeps until half of them are used, so that it wakes rarely.
class Prefetch {
 public:
  // Writes batch `number`; x and y have `size` tokens each. Called on the thread, for one number at a time.
  using Fill = std::function<void(std::int64_t number, std::span<std::int32_t> x, std::span<std::int32_t> y)>;

  static constexpr std::size_t default_ahead = 4;
  // Throws ShapeError or OutOfMemory for batches that no memory holds, Error if the system gives no thread.
  Prefetch(std::int64_t first, std::int64_t last, std::size_t size, Fill fill,
           std::size_t ahead = default_ahead);
  ~Prefetch();  // does not wait for unused batches
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  // Its memory in bytes for batches of `size` tokens.
  static std::size_t bytes(std::size_t size) { return 2 * sizeof(std::int32_t) * size * (default_ahead + 1); }

  // Valid until the next call. Rethrows the exception of `fill` for this batch; throws Error after the last
  // one.
  const TokenBatch& next();

 private:
  void work();

  const std::int64_t last_;
  const Fill fill_;
  std::vector<TokenBatch> ring_;  // batch n is at index n % size; one more than are filled ahead
  std::int64_t taken_;            // the number that next() gives next
  std::int64_t filled_;           // the number that is filled next
  std::exception_ptr failure_;    // of batch filled_
  bool stop_ = false;
  std::mutex mutex_;
  std::condition_variable wake_thread_, wake_taker_;
  std::thread thread_;
};

}  // namespace tg::train
