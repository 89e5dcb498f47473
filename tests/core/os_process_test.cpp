// Tests child processes, signals and streams of the system layer.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "core/os/process.h"
#include "core/os/signals.h"
#include "core/os/streams.h"

namespace tg::os {
namespace {

// Runs a program. Returns its complete output and its exit status.
struct Run {
  std::string output;
  ExitStatus status;
};
Run run(Command command) {
  Pipe pipe;
  EXPECT_EQ(open_pipe(pipe), 0);
  command.output = pipe.writer;
  ProcessId child = -1;
  EXPECT_EQ(start(command, child), 0);
  close_stream(pipe.writer);
  Run run;
  std::array<char, 100> bytes;
  for (std::ptrdiff_t n; (n = read_some(pipe.reader, bytes)) > 0;)
    run.output.append(bytes.data(), static_cast<std::size_t>(n));
  close_stream(pipe.reader);
  std::optional<ExitStatus> status;
  while (!(status = exit_status(child))) {
  }
  EXPECT_TRUE(exit_status(child)) << "it is kept";
  reap(child);
  EXPECT_FALSE(exit_status(child));
  run.status = *status;
  return run;
}
Run run_shell(const std::string& script) {
  return run({.words = {"sh", "-c", script}});
}

TEST(Process, EnvironmentIsChangedForTheProgramOnly) {
  ::setenv("TG_TEST_KEPT", "kept", 1), ::setenv("TG_TEST_SET", "before", 1), ::setenv("TG_TEST_GONE", "x", 1);
  const std::string script = "echo $TG_TEST_KEPT $TG_TEST_SET $TG_TEST_NEW ${TG_TEST_GONE-gone}";
  EXPECT_EQ(
      run({.words = {"sh", "-c", script},
           .environment = {{"TG_TEST_SET", "=set="}, {"TG_TEST_NEW", ""}, {"TG_TEST_GONE", std::nullopt}}})
          .output,
      "kept =set= gone\n");
  EXPECT_EQ(run_shell(script).output, "kept before x\n");
}

TEST(Process, ExitStatusHasACodeOrASignal) {
  EXPECT_EQ(run_shell("exit 3").status.code, 3);
  EXPECT_EQ(run_shell("exit 3").status.signal, 0);
  EXPECT_EQ(run_shell("kill -TERM $$").status.signal, signals::terminate);
  EXPECT_TRUE(is_crash(run_shell("kill -SEGV $$").status.signal));
}

TEST(Process, StartErrorIsReported) {
  for (const auto& [word, error] : {std::pair("no_such_program", ENOENT), {"/", EACCES}, {"true", 0}}) {
    Pipe report;
    ASSERT_EQ(open_pipe(report), 0);
    make_nonblocking(report.reader);
    EXPECT_FALSE(start_error(report.reader)) << "while nothing is started";
    const ExitStatus status = run({.words = {word}, .report = report.writer}).status;
    close_stream(report.writer);
    EXPECT_EQ(status.code, error ? 127 : 0) << word;
    EXPECT_EQ(start_error(report.reader), error) << word;
    close_stream(report.reader);
  }
}

TEST(Process, NoInputIsAnEmptyFile) {
  EXPECT_EQ(run({.words = {"sh", "-c", "cat; echo end"}, .input = Command::nothing}).output, "end\n");
}

TEST(Process, LeaderOfAGroupIsSignalledWithItsProcesses) {
  ProcessId child = -1;
  ASSERT_EQ(start({.words = {"sh", "-c", "sleep 60 & wait"}, .leads_group = true}, child), 0);
  EXPECT_TRUE(is_in_group(child, child));
  EXPECT_FALSE(is_in_group(process_id(), child));
  signal_group(child, signals::kill);
  reap(child);
}

TEST(Signals, HandlerKnowsTheSenderAndKeepsTheErrorNumber) {
  static std::atomic<bool> has_come;
  static std::atomic<ProcessId> sender;
  catch_signal(signals::timer, [](int, ProcessId) { errno = EBADF, has_come = true; });
  errno = 0;
  set_timer(1);
  while (!has_come) {
  }
  EXPECT_EQ(errno, 0);
  catch_signal(signals::hangup, [](int, ProcessId process) { sender = process; });
  const std::string process = run_shell("kill -HUP $PPID; echo $$").output;
  EXPECT_EQ(process, std::to_string(sender) + "\n");
  std::signal(SIGALRM, SIG_DFL), std::signal(SIGHUP, SIG_DFL);
}

TEST(Signals, IgnoredSignalsStayIgnoredInAProgramUnlessItsCommandResetsThem) {
  std::signal(SIGHUP, SIG_DFL);  // the test may run under nohup
  EXPECT_FALSE(is_ignored(signals::hangup));
  ignore_signal(signals::hangup);
  EXPECT_TRUE(is_ignored(signals::hangup));
  const Command command{.words = {"sh", "-c", "kill -HUP $$"}};
  EXPECT_EQ(run(command).status.signal, 0);
  Command changed = command;
  changed.default_signals = {signals::hangup};
  EXPECT_EQ(run(changed).status.signal, signals::hangup);
  std::signal(SIGHUP, SIG_DFL);
}

TEST(Streams, ReadinessAndEndOfAPipe) {
  Pipe pipe;
  ASSERT_EQ(open_pipe(pipe), 0);
  make_nonblocking(pipe.reader), make_nonblocking(pipe.writer);
  std::array<char, 10> bytes;
  EXPECT_EQ(read_some(pipe.reader, bytes), none_now);
  Polled waited[] = {{pipe.reader}, {pipe.writer, true}, {-1}};
  poll(waited, 0);
  EXPECT_FALSE(waited[0].is_ready);
  EXPECT_TRUE(waited[1].is_ready && has_room(pipe.writer));
  EXPECT_FALSE(waited[2].is_ready);
  EXPECT_EQ(write_some(pipe.writer, "abc"), 3);
  poll(waited, 0);
  EXPECT_TRUE(waited[0].is_ready);
  std::FILE* file = file_of(pipe.reader, "r");
  EXPECT_EQ(bytes_to_read(file), 3);
  EXPECT_FALSE(is_terminal(file));
  EXPECT_EQ(terminal_width(file), 0);
  while (write_some(pipe.writer, std::string(whole_write, 'x')) > 0) {
  }
  EXPECT_FALSE(has_room(pipe.writer));
  std::fclose(file);
  ignore_signal(signals::closed_pipe);
  EXPECT_TRUE(has_room(pipe.writer)) << "writing would fail, and not wait";
  EXPECT_EQ(write_some(pipe.writer, "x"), 0);
  std::signal(SIGPIPE, SIG_DFL);
  close_stream(pipe.writer);
}

}  // namespace
}  // namespace tg::os
