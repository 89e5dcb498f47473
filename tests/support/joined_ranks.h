// Ranks for tests. They join as if a launcher had started them (parallel/group.h).
#pragma once

#include <set>
#include <thread>

#include <fcntl.h>

#include <tilegrad/parallel/group.h>
#include "tests/support/ranks.h"

namespace tg {

using parallel::Group;
using parallel::JoinOptions;
using parallel::World;
using parallel::WorldError;
using std::chrono::milliseconds;

// Returns the World of a process of ask(). The parent of the process, which is the test, identifies the job.
inline World world_of(int rank, int size) {
  return {rank, size, rank, size, "launch", "test " + std::to_string(getppid())};
}

// Returns the message of the exception that f throws, prefixed by its type.
inline std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const RankLost& e) {
    return std::string("lost: ") + e.what();
  } catch (const WorldError& e) {
    return std::string("wrong: ") + e.what();
  }
  return "no error";
}

// Returns the descriptors that programs would inherit if this process started them.
inline std::set<int> inherited_descriptors() {
  std::set<int> all;
  for (int fd = 0; fd < 1024; ++fd)
    if (const int flags = ::fcntl(fd, F_GETFD); flags >= 0 && (flags & FD_CLOEXEC) == 0) all.insert(fd);
  return all;
}

// Calls f in n processes.
inline std::vector<RankResult> ask(int n, const std::function<std::string(int)>& f, int seconds = 30) {
  return ask_processes(n, f, {}, seconds);
}

inline void nap(milliseconds t) {
  std::this_thread::sleep_for(t);
}

inline std::span<const std::byte> bytes_of(const auto& x) {
  return std::as_bytes(std::span(&x, 1));
}

// Shares a number of each rank and returns all of them.
inline std::string numbers(Communicator& ranks, int own) {
  std::string all;
  ranks.share(bytes_of(own), [&](std::span<const std::byte* const> shown) {
    for (const std::byte* s : shown) {
      int n = 0;
      std::memcpy(&n, s, sizeof n);
      all += std::to_string(n) + " ";
    }
  });
  return all;
}

inline std::string share_for_ever(Group& group) {
  for (;;) numbers(group.communicator(), 0);
}

}  // namespace tg
