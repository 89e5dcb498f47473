// Tests that a rank finds its launcher's memory by TG_LAUNCH and LOCAL_RANK. Without this memory, the rank
// must also work.
#include "parallel/launch_board.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/os/process.h"
#include "parallel/shared_memory.h"
#include "tests/support/failing_calls.h"
#include "tests/support/ranks.h"

// Replaces the system's function. The new function can report that existing files do not exist.
static bool has_files = true;
extern "C" std::FILE* fopen(const char* path, const char* mode) {
  static const auto open = reinterpret_cast<decltype(&fopen)>(::dlsym(RTLD_NEXT, "fopen"));
  return has_files ? open(path, mode) : nullptr;
}

namespace tg {
namespace {

using parallel::LaunchBoard;

void set_variable(const char* name, const std::string& value) {
  value.empty() ? ::unsetenv(name) : ::setenv(name, value.c_str(), 1);
}

// Returns the launch that a process with these variables finds. A variable is unset if it is "". The process
// id replaces "own". The process writes its state to the board.
std::string found_by(const std::string& launch, const std::string& local_rank) {
  const auto results = ask_processes(
      1,
      [&](int) {
        const bool is_own = launch.starts_with("own");
        set_variable(LaunchBoard::variable, is_own ? std::to_string(getpid()) + launch.substr(3) : launch);
        set_variable("LOCAL_RANK", local_rank);
        ::close(0);  // now the board may get descriptor 0
        const parallel::Launch* found = parallel::launch_of_this_process();
        EXPECT_EQ(found, parallel::launch_of_this_process());
        if (!found) return std::string("nothing");
        for (const int flag : {O_CLOEXEC, O_NONBLOCK, O_NOCTTY})  // the file may be of any kind
          EXPECT_NE(testing::last_open_flags & flag, 0) << flag;
        EXPECT_EQ(own_end_state().saving + own_end_state().writing, 0u) << "of an earlier process";
        own_end_state().saving = 7, own_end_state().asked_by = 9;
        EXPECT_EQ(&own_end_state(), &found->ranks[static_cast<std::size_t>(std::stoi(local_rank))]);
        return std::to_string(found->process == getppid()) + " " + std::to_string(found->ranks.size()) + " " +
               std::to_string(found->times.grace) + " " + std::to_string(found->times.save_grace);
      },
      {});
  return results[0].text;
}

TEST(LaunchBoard, FoundByItsVariables) {
  const LaunchBoard board(3, {.grace = 11, .save_grace = 22});
  for (const int rank : {0, 2}) {
    EndState& state = board.state(rank);
    state.saving = 1, state.writing = 1;  // a process that was killed during a save left this state
    EXPECT_EQ(found_by(board.value(), std::to_string(rank)), "1 3 11 22");
    EXPECT_EQ(state.saving, 7u);
    EXPECT_EQ(state.writing, 0u);
    EXPECT_EQ(state.asked_by, 9);
    EXPECT_GT(state.process, 0);
  }
  EXPECT_EQ(board.state(1).process, 0) << "no process had that number";
  EXPECT_EQ(found_by(board.value() + ":5", "1"), "1 3 11 22") << "with additional fields";
}

TEST(LaunchBoard, HoldsUpToTheMaximumNumberOfRanks) {
  const LaunchBoard largest(parallel::most_ranks, {}), larger(parallel::most_ranks + 1, {});
  EXPECT_EQ(found_by(largest.value(), "1023"), "1 1024 8000 120000");
  EXPECT_EQ(found_by(larger.value(), "1023"), "nothing");
}

TEST(LaunchBoard, LeavesNoMapping) {
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);) count += line.find("tilegrad ranks") != line.npos;
    return count;
  };
  const int before = mappings();
  {
    const LaunchBoard board(5, {});
    EXPECT_EQ(mappings(), before + 1);
  }
  EXPECT_EQ(mappings(), before);
}

// A value that is not a number must not be read as descriptor 0.
TEST(LaunchBoard, DescriptorZeroIsAccepted) {
  const int input = ::dup(STDIN_FILENO);
  ::close(STDIN_FILENO);
  {
    const LaunchBoard board(1, {});
    const std::string process = std::to_string(::getpid());
    EXPECT_EQ(board.value(), process + ":0");
    for (const char* number : {":x", ":", ":-0x", ": 0"})
      EXPECT_EQ(found_by(process + number, "0"), "nothing");
    EXPECT_EQ(found_by(board.value(), "0"), "1 1 8000 120000");
  }
  ::dup2(input, STDIN_FILENO), ::close(input);
}

TEST(LaunchBoard, NotFoundByInvalidVariables) {
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
      {process + "0", "0"},  // a different file
      {"0:" + value.substr(process.size()), "0"},
      {"-1:" + value.substr(process.size()), "0"},
      {"1:1", "0"},  // a different process
      {"own" + value.substr(process.size() - 1),
       "0"},  // the same file, but its launch is a different process
  };
  // Tests other files of this process: a file of a different size, without seals, or without the mark.
  const int board_file = std::stoi(value.substr(process.size()));
  struct stat about {};
  ASSERT_EQ(::fstat(board_file, &about), 0);
  const auto size = static_cast<std::size_t>(about.st_size);
  const FileDescriptor small = parallel::new_memory(64), empty = parallel::new_memory(size),
                       unsealed(::memfd_create("unsealed", MFD_CLOEXEC));
  std::string bytes(size, '\0');
  ASSERT_EQ(::pread(board_file, bytes.data(), size, 0), about.st_size);
  ASSERT_EQ(::write(unsealed.fd, bytes.data(), size), about.st_size);
  ASSERT_EQ(::pwrite(small.fd, bytes.data(), 64, 0), 64);
  for (const FileDescriptor* other : {&small, &empty, &unsealed})
    EXPECT_EQ(found_by(process + std::to_string(other->fd), "0"), "nothing");
  for (const auto& c : cases)
    EXPECT_EQ(found_by(c.launch, c.local_rank), "nothing") << c.launch << ", " << c.local_rank;
  for (const int rank : {0, 1, 2}) EXPECT_EQ(board.state(rank).process, 0) << rank;
}

// Sets signals to their defaults, as in a new shell. The program that started the test, such as nohup, may
// have set signals to be ignored.
void reset_signals() {
  for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGUSR1}) ::signal(signal, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Tests a process that received a signal while it is stopped, or that is stopped in a signal handler.
TEST(StopState, ReportsThePendingStopSignal) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer calls handlers later";
#endif
  const auto state_of = [](const std::function<void()>& stops, int sent) {
    const pid_t process = ::fork();
    if (process == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      reset_signals();
      stops();
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(process, &status, WUNTRACED);
    EXPECT_TRUE(WIFSTOPPED(status));
    if (sent != 0) ::kill(process, sent);
    const os::StopState seen = os::stop_state(process);
    EXPECT_TRUE(seen.is_stopped);
    ::kill(process, SIGKILL);
    ::waitpid(process, &status, 0);
    EXPECT_FALSE(os::stop_state(process).is_stopped) << "it has ended";
    return seen.asked_by;
  };
  const auto stop = [](int) { ::raise(SIGSTOP); };
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
    EXPECT_EQ(state_of([&] { stop(0); }, signal), signal);
    const auto in_handler = [&] {
      ::signal(signal, stop);
      ::raise(signal);
    };
    EXPECT_EQ(state_of(in_handler, 0), signal);
  }
  const auto block = [](int signal) {
    sigset_t one;
    ::sigemptyset(&one), ::sigaddset(&one, signal);
    ::sigprocmask(SIG_BLOCK, &one, nullptr);
  };
  const auto sent_to_thread = [&] {
    block(SIGTERM);
    ::raise(SIGTERM);  // pending for this thread instead of the process
    stop(0);
  };
  EXPECT_EQ(state_of(sent_to_thread, 0), SIGTERM);
  EXPECT_EQ(state_of([&] { stop(0); }, 0), 0);
  EXPECT_EQ(state_of([&] { stop(0); }, SIGUSR1), 0);
  // Outside of handlers, the C library also blocks all signals for short times.
  const auto all_blocked = [&] {
    ::signal(SIGTERM, stop);
    sigset_t all;
    ::sigfillset(&all);
    ::sigprocmask(SIG_BLOCK, &all, nullptr);
    stop(0);
  };
  EXPECT_EQ(state_of(all_blocked, 0), 0);
  for (const int blocked : {15, 16}) {  // includes SIGTERM; a handler may also block a few others
    const auto some_blocked = [&] {
      ::signal(SIGTERM, stop);
      block(SIGTERM);
      for (int i = 1; i < blocked; ++i) block(SIGRTMIN + i);
      stop(0);
    };
    EXPECT_EQ(state_of(some_blocked, 0), blocked < 16 ? SIGTERM : 0) << blocked;
  }
  const auto pending_twice = [&] {
    for (const int signal : {SIGHUP, SIGTERM}) block(signal), ::raise(signal);
    stop(0);
  };
  EXPECT_EQ(state_of(pending_twice, 0), SIGTERM) << "the last of its kind";
  ::signal(SIGTERM, stop);
  block(SIGTERM);  // as in the handler
  const os::StopState own = os::stop_state(::getpid());
  EXPECT_FALSE(own.is_stopped);
  EXPECT_EQ(own.asked_by, 0) << "it is not stopped";
  ::signal(SIGTERM, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// A thread may end before its status is read.
TEST(StopState, ThreadsWithoutStatusAreNotStopped) {
  const pid_t process = ::fork();
  if (process == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    reset_signals();
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(process, &status, WUNTRACED);
  for (const bool has_status : {false, true}) {
    has_files = has_status;
    EXPECT_EQ(os::stop_state(process).is_stopped, has_status);
  }
  ::kill(process, SIGKILL);
  ::waitpid(process, &status, 0);
}

// Returns how a stopped launch ends. If `sent` is not 0, launch was sent this signal. The rank watches
// launch, and may have received a request to end. If launch is still stopped after a second, returns "stays
// stopped".
std::string end_of_stopped_launch(int sent, bool rank_is_asked, bool is_other_file = false) {
  const pid_t launch = ::fork();
  if (launch == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    reset_signals();
    const LaunchBoard board(1, {});
    ::setenv(LaunchBoard::variable, board.value().c_str(), 1), ::setenv("LOCAL_RANK", "0", 1);
    if (::fork() == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      parallel::Launch found = *parallel::launch_of_this_process();
      if (is_other_file) ++found.file;
      if (rank_is_asked) own_end_state().asked_by = SIGTERM;
      const parallel::LaunchWatch watch(found);
      for (;;) ::pause();
    }
    while (board.state(0).process == 0) ::usleep(1000);
    ::raise(SIGSTOP);
    ::_exit(7);
  }
  int status = 0;
  ::waitpid(launch, &status, WUNTRACED);
  if (sent != 0) ::kill(launch, sent);
  for (int i = 0; i < 100; ++i) {
    if (::waitpid(launch, &status, WNOHANG) == launch)
      return WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                                 : "code " + std::to_string(WEXITSTATUS(status));
    ::usleep(10'000);
  }
  ::kill(launch, SIGKILL);
  ::waitpid(launch, &status, 0);
  return "stays stopped";
}

TEST(LaunchWatch, ContinuesAStoppedLaunchWithPendingWork) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer has threads when processes are forked";
#endif
  for (const int signal : {SIGHUP, SIGINT, SIGTERM})
    EXPECT_EQ(end_of_stopped_launch(signal, false), "signal " + std::to_string(signal));
  EXPECT_EQ(end_of_stopped_launch(0, true), "code 7");
  EXPECT_EQ(end_of_stopped_launch(0, false), "stays stopped");
  EXPECT_EQ(end_of_stopped_launch(SIGTERM, true, true), "stays stopped") << "a different process by now";
}

// The watch checks every 250 ms, but its thread must wake immediately in this case. One success in ten
// attempts is enough, because other processes may cause delays.
TEST(LaunchWatch, EndsImmediately) {
  using Clock = std::chrono::steady_clock;
  const parallel::Launch launch{::getpid(), {}, {}, "/no/such/file", 0};
  auto shortest = Clock::duration::max();
  for (int i = 0; i < 10 && shortest > std::chrono::milliseconds(100); ++i) {
    std::optional<parallel::LaunchWatch> watch(std::in_place, launch);
    ::usleep(20'000);
    const auto start = Clock::now();
    watch.reset();
    shortest = std::min(shortest, Clock::now() - start);
  }
  EXPECT_LT(shortest, std::chrono::milliseconds(100));
}

// The launch may have a handler for SIGCONT. If launch was not stopped, it must not receive this signal.
TEST(LaunchWatch, SendsNoSignalToARunningLaunch) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer has threads when processes are forked";
#endif
  const pid_t launch = ::fork();
  if (launch == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    reset_signals();
    ::signal(SIGCONT, [](int) { ::_exit(3); });
    const LaunchBoard board(1, {});
    ::setenv(LaunchBoard::variable, board.value().c_str(), 1), ::setenv("LOCAL_RANK", "0", 1);
    if (::fork() == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const parallel::Launch* found = parallel::launch_of_this_process();
      own_end_state().asked_by = SIGTERM;
      const parallel::LaunchWatch watch(*found);
      for (;;) ::pause();
    }
    while (board.state(0).asked_by == 0) ::usleep(1000);
    ::usleep(600'000);  // the watch checks every 250 ms
    ::_exit(7);
  }
  int status = 0;
  ::waitpid(launch, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

}  // namespace
}  // namespace tg
