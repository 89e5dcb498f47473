// Ranks for tests. They are processes of this host that share memory.
//
//   run_ranks(4, [](Communicator& ranks) { EXPECT_EQ(sum_of(ranks), 6); });
//
// Ranks are forked, and a forked process has only one thread. So the parent must not start threads before the
// fork. For example, the first program that runs starts the CPU backend's thread pool. Therefore, compute
// reference results also in a rank: ask_ranks(1, f).
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

#include "parallel/shared_memory.h"

namespace tg {

// How a rank ended. '+' means that the rank returned `text`. '-' means that it failed with the message
// `text`. 'l' means that it lost another rank. '?' means that it ended without a report. In this case, `text`
// describes the end.
struct RankResult {
  char kind = '?';
  std::string text;
};

namespace ranks_detail {

using Clock = std::chrono::steady_clock;

struct Child {
  pid_t process;
  int pipe;
  std::string read;
  bool is_open = true;
};

inline RankResult result_in_child(const std::function<std::string(int)>& f, int rank) {
  try {
    std::string text = f(rank);
    const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
    std::string failures;
    if (test)
      for (int i = 0; i < test->result()->total_part_count(); ++i)
        if (const ::testing::TestPartResult& part = test->result()->GetTestPartResult(i); part.failed())
          failures += std::string(part.file_name() ? part.file_name() : "?") + ":" +
                      std::to_string(part.line_number()) + ": " + part.message() + "\n";
    if (!failures.empty()) return {'-', failures};
    return {'+', std::move(text)};
  } catch (const RankLost& e) {
    return {'l', e.what()};
  } catch (const std::exception& e) {
    return {'-', e.what()};
  }
}

inline void write_result(int pipe, const RankResult& result) {
  const std::string all = result.kind + result.text;
  for (std::size_t done = 0; done < all.size();) {
    const ssize_t n = ::write(pipe, all.data() + done, all.size() - done);
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
}

inline std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) return std::string("ended by signal ") + strsignal(WTERMSIG(status));
  return "ended with exit code " + std::to_string(WEXITSTATUS(status)) + " in the middle";
}

}  // namespace ranks_detail

// Calls f(0) to f(n − 1) in separate processes and returns their results in this order. `f` returns bytes. If
// an expectation in `f` fails, the process fails. When a process ends, `on_end` is called. After `seconds`,
// all processes are killed.
inline std::vector<RankResult> ask_processes(int n, const std::function<std::string(int)>& f,
                                             const std::function<void(int, const RankResult&)>& on_end,
                                             int seconds = 30) {
  using namespace ranks_detail;
#if defined(__linux__) && !defined(__SANITIZE_THREAD__)
  namespace fs = std::filesystem;
  EXPECT_EQ(std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator()), 1)
      << "ranks are forked, but this process has already started a thread";
#endif
  std::fflush(nullptr);  // otherwise each child prints buffered output again
  std::vector<Child> children;
  for (int rank = 0; rank < n; ++rank) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) throw Error("pipe: " + std::string(std::strerror(errno)));
    const pid_t process = ::fork();
    if (process == 0) {
#if defined(__linux__)
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // ends the child even if the parent is killed
#endif
      for (const Child& c : children) ::close(c.pipe);
      ::close(ends[0]);
      write_result(ends[1], result_in_child(f, rank));
      std::fflush(nullptr);
      ::_exit(0);  // skips the destructors of the test program
    }
    ::close(ends[1]);
    if (process < 0) throw Error("fork: " + std::string(std::strerror(errno)));
    children.push_back({process, ends[0], {}});
  }

  std::vector<RankResult> results(children.size());
  const Clock::time_point end = Clock::now() + std::chrono::seconds(seconds);
  bool is_late = false;
  for (std::size_t open = children.size(); open > 0;) {
    std::vector<pollfd> waited;
    for (const Child& c : children) waited.push_back({c.is_open ? c.pipe : -1, POLLIN, 0});
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (!is_late && left <= 0) {
      is_late = true;
      for (const Child& c : children)
        if (c.is_open) ::kill(c.process, SIGKILL);
    }
    ::poll(waited.data(), waited.size(), static_cast<int>(is_late ? -1 : left));
    for (std::size_t i = 0; i < children.size(); ++i) {
      if (waited[i].revents == 0) continue;
      Child& c = children[i];
      std::array<char, 65536> bytes;
      const ssize_t got = ::read(c.pipe, bytes.data(), bytes.size());
      if (got > 0) {
        c.read.append(bytes.data(), static_cast<std::size_t>(got));
        continue;
      }
      int status = 0;
      ::close(c.pipe);
      ::waitpid(c.process, &status, 0);
      c.is_open = false, --open;
      if (is_late && WIFSIGNALED(status)) {
        results[i].text = "did not end in " + std::to_string(seconds) + " seconds";
      } else if (c.read.empty()) {
        results[i].text = how_it_ended(status);
      } else {
        results[i] = {c.read[0], c.read.substr(1)};
      }
      if (on_end) on_end(static_cast<int>(i), results[i]);
    }
  }
  return results;
}

// Calls f in n processes, as above. They are ranks that share memory. When a rank fails, the others detect
// the loss.
inline std::vector<RankResult> ask_each_rank(int n, const std::function<std::string(Communicator&)>& f,
                                             int seconds = 30) {
  const std::shared_ptr<parallel::SharedMemory> memory = parallel::SharedMemory::create(n);
  return ask_processes(
      n,
      [&](int rank) {
        parallel::HostCommunicator ranks(memory, rank);
        return f(ranks);
      },
      [&](int rank, const RankResult& r) {
        if (r.kind != '+') memory->mark_lost(rank, r.kind == '-' ? "failed" : r.text, n);
      },
      seconds);
}

// Returns the bytes that f returns on each of n ranks, by rank. If f fails on a rank, the test fails.
inline std::vector<std::string> ask_ranks(int n, const std::function<std::string(Communicator&)>& f,
                                          int seconds = 30) {
  const std::vector<RankResult> results = ask_each_rank(n, f, seconds);
  bool is_told = false;  // a rank that failed by itself was already reported
  for (const RankResult& r : results) is_told |= r.kind == '-' || r.kind == '?';
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const RankResult& r = results[i];
    if (r.kind != '+' && !(r.kind == 'l' && is_told)) ADD_FAILURE() << "rank " << i << ": " << r.text;
    texts.push_back(r.kind == '+' ? r.text : "");
  }
  return texts;
}

// Calls f on each of n ranks. f returns nothing, or whether it succeeded.
template <class F>
void run_ranks(int n, const F& f, int seconds = 30) {
  ask_ranks(
      n,
      [&](Communicator& ranks) {
        if constexpr (std::is_same_v<decltype(f(ranks)), void>)
          f(ranks);
        else if (!f(ranks))
          throw Error("the rank function returned false");
        return std::string();
      },
      seconds);
}

}  // namespace tg
