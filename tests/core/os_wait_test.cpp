// Tests waiting for a word in memory. A wait ends if another thread wakes it or after a timeout. If the word
// has already changed, the call returns immediately.
#include "core/os/thread.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

using namespace tg::os;

struct Word {
  std::atomic<std::uint32_t> value{0};
  const std::uint32_t* address() const { return reinterpret_cast<const std::uint32_t*>(&value); }
};

double seconds_of_wait(const Word& word, std::uint32_t value, bool shared, std::int64_t timeout_ns) {
  const auto begin = std::chrono::steady_clock::now();
  wait_while_equal(word.address(), value, shared, timeout_ns);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST(OsWait, ChangedValueReturnsWithoutWaiting) {
  Word word;
  for (const bool shared : {false, true}) {
    EXPECT_LT(seconds_of_wait(word, 1, shared, 60'000'000'000), 30);
    wait_while_equal(word.address(), 1, shared);
  }
}

// A wait may return early. This must not occur every time.
TEST(OsWait, TimeoutEndsTheWait) {
  Word word;
  for (const bool shared : {false, true}) {
    const double timeout = shared ? 1.05 : 0.02;
    double longest = 0;
    for (int i = 0; i < 10 && longest < timeout; ++i)
      longest = std::max(longest, seconds_of_wait(word, 0, shared, static_cast<std::int64_t>(timeout * 1e9)));
    EXPECT_GE(longest, timeout);
  }
}

TEST(OsWait, WakeEndsEveryWait) {
  for (const bool shared : {false, true}) {
    Word word;
    std::vector<std::thread> waiting;
    for (int i = 0; i < 3; ++i)
      waiting.emplace_back([&] {
        while (word.value == 0) wait_while_equal(word.address(), 0, shared);
      });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    word.value = 1;
    wake(word.address(), INT_MAX, shared);
    for (std::thread& t : waiting) t.join();
  }
}

}  // namespace
