// Checks the reports of all ranks if a rank is killed, is stopped or makes no progress. Covers every way of
// joining.
#pragma once

#include "tests/support/joined_ranks.h"

namespace tg {

// Calls f on each of three ranks, each with its World, in separate processes.
using AskThree = std::function<std::vector<RankResult>(const std::function<std::string(const World&)>& f)>;

inline void expect_killed_ranks_named(const AskThree& ask) {
  for (const int killed : {0, 1, 2}) {
    const auto start = std::chrono::steady_clock::now();
    const auto results = ask([&](const World& w) {
      const auto group = parallel::join(w);
      for (int i = 0; i < 200; ++i) {
        if (w.rank == killed && i == 100) ::raise(SIGKILL);
        numbers(group->communicator(), i);
      }
      return std::string("no loss");
    });
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
    for (int rank = 0; rank < 3; ++rank) {
      const RankResult& r = results[static_cast<std::size_t>(rank)];
      EXPECT_EQ(r.kind, rank == killed ? '?' : 'l');
      EXPECT_EQ(r.text, rank == killed
                            ? "ended by signal Killed"
                            : "[ranks] rank " + std::to_string(killed) +
                                  " is lost: its process exited without reporting an error, or was killed");
    }
  }
}

// For about twice their step_timeout, ranks make no progress.
inline void expect_hanging_ranks_named(const AskThree& ask, milliseconds step_timeout) {
  for (const int hanging : {0, 2})
    for (const bool pauses : {false, true}) {
      const auto results = ask([&](const World& w) {
        const auto group = parallel::join(w, {.step_timeout = step_timeout});
        for (int i = 0; i < 5; ++i) {
          numbers(group->communicator(), i);
          group->progress(i);
        }
        if (w.rank == hanging) {
          std::optional<Group::Pause> pause;
          if (pauses) pause.emplace(group->pause());
          nap(2 * step_timeout + milliseconds(100));
        }
        numbers(group->communicator(), 0);
        return std::string("all together");
      });
      const std::string line = "[ranks] rank " + std::to_string(hanging) + " made no progress for ";
      for (const RankResult& r : results) {
        EXPECT_EQ(r.kind, pauses ? '+' : 'l');
        EXPECT_EQ(r.text.find(pauses ? "all together" : line), 0u) << r.text;
        EXPECT_EQ(r.text.find(" after step 4; rank ") == std::string::npos, pauses) << r.text;
      }
    }
}

// `until_all_know` is the time from the first rank's knowledge of the loss until all ranks know of it.
inline void expect_stopped_ranks_named(const AskThree& ask, milliseconds step_timeout,
                                       milliseconds until_all_know = milliseconds(0)) {
  for (const int stopped : {0, 1}) {
    const auto results = ask([&](const World& w) {
      const auto group = parallel::join(w, {.step_timeout = step_timeout});
      int process = getpid();
      group->communicator().share(bytes_of(process), [&](std::span<const std::byte* const> shown) {
        std::memcpy(&process, shown[static_cast<std::size_t>(stopped)], sizeof process);
      });
      if (w.rank == stopped) ::raise(SIGSTOP);
      const std::string line = error_of([&] { share_for_ever(*group); });
      nap(until_all_know);
      ::kill(process, SIGKILL);
      return line;
    });
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == stopped) continue;
      const std::string& text = results[static_cast<std::size_t>(rank)].text;
      EXPECT_EQ(text.find("lost: [ranks] rank " + std::to_string(stopped) + " is stopped: no heartbeat for "),
                0u)
          << text;
    }
  }
}

}  // namespace tg
