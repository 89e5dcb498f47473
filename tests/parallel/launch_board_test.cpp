// A rank finds the memory of its launcher by TG_LAUNCH and LOCAL_RANK, or does without it.
#include "parallel/launch_board.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/support/ranks.h"

namespace tg {
namespace {

using parallel::LaunchBoard;

void set_variable(const char* name, const std::string& value) {
  value.empty() ? ::unsetenv(name) : ::setenv(name, value.c_str(), 1);
}

// The launch that a process with these variables finds; "" unsets one. It writes to its state on the board.
std::string found_by(const std::string& launch, const std::string& local_rank) {
  const auto results = ask_processes(
      1,
      [&](int) {
        set_variable(LaunchBoard::variable, launch), set_variable("LOCAL_RANK", local_rank);
        const parallel::Launch* found = parallel::launch_of_this_process();
        EXPECT_EQ(found, parallel::launch_of_this_process());
        if (!found) return std::string("nothing");
        own_end_state().saving = 7, own_end_state().asked_by = 9;
        EXPECT_EQ(&own_end_state(), &found->ranks[static_cast<std::size_t>(std::stoi(local_rank))]);
        return std::to_string(found->process == getppid()) + " " + std::to_string(found->ranks.size()) + " " +
               std::to_string(found->times.grace) + " " + std::to_string(found->times.save_grace);
      },
      {});
  return results[0].text;
}

TEST(LaunchBoard, IsFoundByItsVariables) {
  const LaunchBoard board(3, {.grace = 11, .save_grace = 22});
  for (const int rank : {0, 2}) {
    EndState& state = board.state(rank);
    state.saving = 1, state.writing = 1;  // of a process that was killed in a save
    EXPECT_EQ(found_by(board.value(), std::to_string(rank)), "1 3 11 22");
    EXPECT_EQ(state.saving, 7u);
    EXPECT_EQ(state.writing, 0u);
    EXPECT_EQ(state.asked_by, 9);
    EXPECT_GT(state.process, 0);
  }
  EXPECT_EQ(board.state(1).process, 0) << "no process had that number";
}

TEST(LaunchBoard, IsNotFoundByOtherVariables) {
  const LaunchBoard board(3, {});
  const std::string value = board.value(), process = value.substr(0, value.find(':') + 1);
  const struct {
    std::string launch, local_rank;
  } cases[] = {
      {"", "0"},
      {value, ""},
      {value, "3"},
      {value, "-1"},
      {value, "x"},
      {value, "1 "},
      {process, "0"},
      {process + "x", "0"},
      {process + "-1", "0"},
      {process + "99999", "0"},
      {process + "0", "0"},  // another file
      {"0:" + value.substr(process.size()), "0"},
      {"-1:" + value.substr(process.size()), "0"},
      {"1:1", "0"},  // another process
  };
  for (const auto& c : cases)
    EXPECT_EQ(found_by(c.launch, c.local_rank), "nothing") << c.launch << ", " << c.local_rank;
  for (const int rank : {0, 1, 2}) EXPECT_EQ(board.state(rank).process, 0) << rank;
}

}  // namespace
}  // namespace tg
