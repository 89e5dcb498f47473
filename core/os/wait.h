// Waiting until a word in memory changes, with the system's help: the thread sleeps meanwhile.
#pragma once

#include <cstdint>

namespace tg::os {

// Sleeps while *word == value, until wake() or `timeout_ns` nanoseconds have passed; negative: without a
// limit. May return early. If `shared`, threads of other processes that map the same memory may change and
// wake it.
void wait_while_equal(const std::uint32_t* word, std::uint32_t value, bool shared,
                      std::int64_t timeout_ns = -1);

// Wakes at most `count` threads that wait for the word. The caller has changed it before.
void wake(const std::uint32_t* word, int count, bool shared);

}  // namespace tg::os
