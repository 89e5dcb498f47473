// Ranks for tests. They are threads of one process. They need no fork, and results can be compared directly.
//
//   run_thread_ranks(3, [&](const std::shared_ptr<Communicator>& ranks) { … });
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <tilegrad/core/run/communicator.h>

namespace tg::testing {

class ThreadMeeting {
 public:
  explicit ThreadMeeting(std::size_t ranks) : copies_(ranks) {}

  void share(std::size_t rank, std::span<const std::byte> own, const Communicator::Reader& read) {
    copies_[rank].assign(own.begin(), own.end());  // a copy, because `read` may write to `own`
    wait();
    std::vector<const std::byte*> shown;
    for (const std::vector<std::byte>& copy : copies_) {
      if (copy.size() != own.size()) throw Error("ranks share different numbers of bytes");
      shown.push_back(copy.data());
    }
    read(shown);
    wait();  // no rank may share the next bytes before this
  }
  void fail() {
    const std::lock_guard lock(mutex_);
    has_failed_ = true;
    changed_.notify_all();
  }

 private:
  void wait() {
    std::unique_lock lock(mutex_);
    const std::size_t round = rounds_;
    if (++arrived_ == copies_.size()) {
      arrived_ = 0, ++rounds_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return rounds_ != round || has_failed_; });
    if (rounds_ == round) throw RankLost("another rank failed");
  }

  std::vector<std::vector<std::byte>> copies_;  // one entry per rank
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t arrived_ = 0, rounds_ = 0;
  bool has_failed_ = false;
};

class ThreadRank final : public Communicator {
 public:
  ThreadRank(ThreadMeeting& meeting, int rank, int size) : Communicator(rank, size), meeting_(meeting) {}
  void share(std::span<const std::byte> own, const Reader& read) override {
    meeting_.share(static_cast<std::size_t>(rank()), own, read);
  }

 private:
  ThreadMeeting& meeting_;
};

// Throws the exception of the first rank that failed by itself.
template <class F>
void run_thread_ranks(int n, const F& f) {
  ThreadMeeting meeting(static_cast<std::size_t>(n));
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const std::shared_ptr<Communicator> own = std::make_shared<ThreadRank>(meeting, rank, n);
        f(own);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
        meeting.fail();
      }
    });
  for (std::thread& t : threads) t.join();
  std::exception_ptr first;
  for (const std::exception_ptr& e : errors) {
    if (!e) continue;
    try {
      std::rethrow_exception(e);
    } catch (const RankLost&) {
      if (!first) first = e;
    } catch (...) {
      std::rethrow_exception(e);
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace tg::testing
