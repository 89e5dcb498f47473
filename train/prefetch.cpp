#include "train/prefetch.h"

#include <algorithm>
#include <string>
#include <system_error>

#include <tilegrad/core/base/error.h>
#include <tilegrad/core/base/layout.h>
#include <tilegrad/core/run/backend.h>

namespace tg::train {

Prefetch::Prefetch(std::int64_t first, std::int64_t last, std::size_t size, Fill fill, std::size_t ahead)
    : last_(last),
      fill_(std::move(fill)),
      ring_(std::max<std::size_t>(ahead, 1) + 1),
      taken_(first),
      filled_(first) {
  const std::int64_t tokens =
      numel({static_cast<std::int64_t>(ring_.size()), 2, static_cast<std::int64_t>(size)});
  const std::size_t bytes = static_cast<std::size_t>(tokens) * sizeof(std::int32_t);
  (void)backend(Device::cpu())
      .allocate(bytes, "batches prepared ahead");  // unlike a vector, throws OutOfMemory
  for (TokenBatch& batch : ring_) batch.x.resize(size), batch.y.resize(size);
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error& e) {
    throw Error("[prefetch] the system gives no thread to prepare batches: " + std::string(e.what()));
  }
}

Prefetch::~Prefetch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_thread_.notify_one();
  thread_.join();
}

void Prefetch::work() {
  // The caller still uses batch taken_ − 1; all other slots of the ring can be filled.
  const auto room = static_cast<std::int64_t>(ring_.size()) - 1;
  std::unique_lock lock(mutex_);
  while (filled_ <= last_) {
    if (filled_ - taken_ == room)
      wake_thread_.wait(lock, [&] { return stop_ || filled_ - taken_ <= room / 2; });
    if (stop_) return;
    TokenBatch& batch = ring_[static_cast<std::size_t>(filled_) % ring_.size()];
    const std::int64_t number = filled_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      fill_(number, batch.x, batch.y);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failure_ = failure;
    if (!failure) ++filled_;
    wake_taker_.notify_one();
    if (failure) return;
  }
}

const TokenBatch& Prefetch::next() {
  std::unique_lock lock(mutex_);
  if (taken_ > last_) throw Error("[prefetch] there is no batch after " + std::to_string(last_));
  wake_taker_.wait(lock, [&] { return filled_ > taken_ || failure_; });
  if (filled_ == taken_) std::rethrow_exception(failure_);
  const TokenBatch& batch = ring_[static_cast<std::size_t>(taken_) % ring_.size()];
  ++taken_;
  const bool due = filled_ - taken_ <= (static_cast<std::int64_t>(ring_.size()) - 1) / 2;
  lock.unlock();
  if (due) wake_thread_.notify_one();
  return batch;
}

}  // namespace tg::train
