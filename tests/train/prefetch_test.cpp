// Tests batches that a separate thread prepares. For any timing, the batches must be the same and in order.
// Each batch must be delivered exactly once.
#include "train/prefetch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include <tilegrad/core/base/error.h>

namespace tg {
namespace {

using Tokens = std::span<std::int32_t>;

void numbered(std::int64_t number, Tokens x, Tokens y) {
  std::fill(x.begin(), x.end(), static_cast<std::int32_t>(number));
  std::fill(y.begin(), y.end(), static_cast<std::int32_t>(-number));
}

void nap(int microseconds) {
  if (microseconds > 0) std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

void expect_batch(const train::TokenBatch& batch, std::int64_t number) {
  for (const std::int32_t t : batch.x) ASSERT_EQ(t, number);
  for (const std::int32_t t : batch.y) ASSERT_EQ(t, -number);
}

TEST(Prefetch, DeliversEachBatchOnceInOrder) {
  for (const std::size_t ahead : {1, 2, 8})
    for (const auto& [filling, taking] : {std::pair(0, 0), {300, 0}, {0, 300}, {100, 100}}) {
      std::atomic<int> filled = 0;
      train::Prefetch batches(
          5, 64, 16,
          [&, nap_for = filling](std::int64_t n, Tokens x, Tokens y) {
            nap(n % 3 == 0 ? nap_for : 0);
            ++filled;
            numbered(n, x, y);
          },
          ahead);
      for (std::int64_t n = 5; n <= 64; ++n) {
        const train::TokenBatch& batch = batches.next();
        nap(n % 4 == 0 ? taking : 0);
        expect_batch(batch, n);  // the batch does not change while it is read
      }
      EXPECT_EQ(filled, 60);
      EXPECT_THROW(batches.next(), Error);
    }
}

TEST(Prefetch, NeverExceedsItsCapacity) {
  std::atomic<std::int64_t> taken = 0, furthest = 0;
  train::Prefetch batches(
      0, 200, 4,
      [&](std::int64_t n, Tokens x, Tokens y) {
        furthest = std::max<std::int64_t>(furthest, n - taken);
        numbered(n, x, y);
      },
      3);
  for (std::int64_t n = 0; n <= 200; ++n) {
    expect_batch(batches.next(), n);
    taken = n + 1;
    nap(n % 7 == 0 ? 200 : 0);
  }
  EXPECT_LE(furthest, 3);
}

TEST(Prefetch, ErrorIsDeliveredWithItsBatch) {
  train::Prefetch batches(0, 100, 4, [](std::int64_t n, Tokens x, Tokens y) {
    if (n == 7) throw Error("batch 7 is bad");
    numbered(n, x, y);
  });
  for (std::int64_t n = 0; n < 7; ++n) expect_batch(batches.next(), n);
  for (int i = 0; i < 2; ++i) {
    try {
      batches.next();
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_STREQ(e.what(), "batch 7 is bad");
    }
  }
}

TEST(Prefetch, BatchesThatExceedMemoryAreAnError) {
  EXPECT_THROW(train::Prefetch(0, 9, std::size_t{1} << 48, numbered), OutOfMemory);
  EXPECT_THROW(train::Prefetch(0, 9, std::size_t{1} << 63, numbered), ShapeError);
}

TEST(Prefetch, EndsImmediatelyInAnyState) {
  for (int taken = 0; taken < 12; ++taken) {
    train::Prefetch batches(0, 1'000'000'000, 4, numbered, 4);
    for (int n = 0; n < taken; ++n) expect_batch(batches.next(), n);
  }
}

}  // namespace
}  // namespace tg
