// Detects two errors: concurrent use of an object for one thread at a time, and unbounded recursion.
#pragma once

#include <atomic>
#include <string>
#include <thread>

#include <tilegrad/core/base/error.h>

namespace tg {

// Marks a call of `who` on an object that supports one call at a time. `busy` is a member of the object. If
// another call is in progress, throws Error with `what`.
class OneUser {
 public:
  OneUser(std::atomic<bool>& busy, const char* who, const char* what) : busy_(busy) {
    if (busy.exchange(true, std::memory_order_acquire)) throw Error("[" + std::string(who) + "] " + what);
  }
  ~OneUser() { busy_.store(false, std::memory_order_release); }
  OneUser(const OneUser&) = delete;

 private:
  std::atomic<bool>& busy_;
};

// Same as OneUser, but functions of the object may call each other within one thread. `user` is a member of
// the object.
class OneThread {
 public:
  OneThread(std::atomic<std::thread::id>& user, const char* who, const char* what) : user_(user) {
    std::thread::id expected;
    is_outermost_ =
        user.compare_exchange_strong(expected, std::this_thread::get_id(), std::memory_order_acquire);
    if (!is_outermost_ && expected != std::this_thread::get_id())
      throw Error("[" + std::string(who) + "] " + what);
  }
  ~OneThread() {
    if (is_outermost_) user_.store({}, std::memory_order_release);
  }
  OneThread(const OneThread&) = delete;

 private:
  std::atomic<std::thread::id>& user_;
  bool is_outermost_;
};

// Counts nested calls of `who` in a thread. `depth` is the counter. If there are more than `most` calls,
// throws Error with `what`, long before the stack overflows.
class Nested {
 public:
  static constexpr int most = 32;
  Nested(int& depth, const std::string& who, const char* what) : depth_(depth) {
    if (depth >= most)
      throw Error("[" + who + "] " + what + ": more than " + std::to_string(most) +
                  " calls contain one another");
    ++depth;
  }
  ~Nested() { --depth_; }
  Nested(const Nested&) = delete;

 private:
  int& depth_;
};

}  // namespace tg
