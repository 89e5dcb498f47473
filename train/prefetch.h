// Prepares batches ahead of time on a separate thread.
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

// Returns batches first … last in order. `fill` computes a batch only from its number, so batches do not
// depend on timing. The thread fills up to `ahead` batches and then sleeps until half of them are used, so
// that it does not wake for every batch.
class Prefetch {
 public:
  // Writes batch `number`; x and y have `size` tokens each. Called on the thread, for one batch at a time.
  using Fill = std::function<void(std::int64_t number, std::span<std::int32_t> x, std::span<std::int32_t> y)>;

  static constexpr std::size_t default_ahead = 4;
  // Throws ShapeError or OutOfMemory if the batches do not fit into memory, and Error if the system cannot
  // start a thread.
  Prefetch(std::int64_t first, std::int64_t last, std::size_t size, Fill fill,
           std::size_t ahead = default_ahead);
  ~Prefetch();  // does not wait until batches are used
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  // The memory of a batch of `size` tokens in bytes.
  static std::size_t bytes(std::size_t size) { return 2 * sizeof(std::int32_t) * size * (default_ahead + 1); }

  // Returns the next batch, valid until the next call. Rethrows the exception of `fill` for this batch.
  // Throws Error after the last batch.
  const TokenBatch& next();

 private:
  void work();

  const std::int64_t last_;
  const Fill fill_;
  std::vector<TokenBatch> ring_;  // batch n has index n % size; size = ahead + 1
  std::int64_t taken_;            // the number of the batch that next() returns next
  std::int64_t filled_;           // the number of the batch that is filled next
  std::exception_ptr failure_;    // of batch filled_
  bool stop_ = false;
  std::mutex mutex_;
  std::condition_variable wake_thread_, wake_taker_;
  std::thread thread_;
};

}  // namespace tg::train
