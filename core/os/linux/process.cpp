#include "core/os/process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "core/os/signals.h"
#include "core/os/streams.h"

namespace tg::os {

namespace {

std::vector<std::string> environment_of(const Command& command) {
  std::vector<std::string> all;
  for (char** entry = environ; entry && *entry; ++entry)
    if (const std::string text = *entry; !command.environment.contains(text.substr(0, text.find('='))))
      all.push_back(text);
  for (const auto& [name, value] : command.environment)
    if (value) all.push_back(name + "=" + *value);
  return all;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Runs in the new process. Allocates nothing, because other threads may have held locks during fork().
// Returns only if the program cannot be started.
void become(const Command& command, char* const* words, char* const* environment, ProcessId parent,
            BlockedSignals& blocked) {
  if (command.leads_group) ::setpgid(0, 0);
  for (const int s : command.default_signals) std::signal(s, SIG_DFL);
  ::prctl(PR_SET_PDEATHSIG, command.end_signal);
  if (::getppid() != parent) ::_exit(127);
  if (command.input == Command::nothing) {
    const int none = ::open("/dev/null", O_RDONLY);
    ::dup2(none, 0), ::close(none);
  }
  const int streams[] = {command.input, command.output, command.errors};
  for (int fd = 0; fd <= 2; ++fd)
    if (streams[fd] >= 0 && ::dup2(streams[fd], fd) != fd) return;
  blocked.unblock();  // a signal received since fork() ends the process now
  ::execvpe(words[0], words, environment);
}

}  // namespace

ProcessId process_id() {
  return ::getpid();
}

ProcessId parent_process_id() {
  return ::getppid();
}

int start(const Command& command, ProcessId& process) {
  std::vector<std::string> words = command.words, environment = environment_of(command);
  const std::vector<char*> word_list = pointers_to(words), environment_list = pointers_to(environment);
  const ProcessId parent = ::getpid();
  // Until the new process installs its own handlers, a signal would call the handlers of this process.
  BlockedSignals blocked;
  process = ::fork();
  const int error = errno;
  if (process == 0) {
    become(command, word_list.data(), environment_list.data(), parent, blocked);
    const int why = errno;
    if (command.report >= 0) (void)!::write(command.report, &why, sizeof why);
    ::_exit(127);
  }
  // Called in the parent too, because the parent may send a signal before the child calls setpgid().
  if (process > 0 && command.leads_group) ::setpgid(process, process);
  return process > 0 ? 0 : error;
}

std::optional<int> start_error(int report) {
  int why = 0;
  const ssize_t n = ::read(report, &why, sizeof why);
  return n < 0 ? std::nullopt : std::optional(n == 0 ? 0 : why);
}

std::optional<ExitStatus> exit_status(ProcessId child) {
  siginfo_t ended{};
  const int how = WEXITED | WNOHANG | WNOWAIT;
  if (::waitid(P_PID, static_cast<id_t>(child), &ended, how) != 0 || ended.si_pid == 0) return std::nullopt;
  return ended.si_code == CLD_EXITED ? ExitStatus{.code = ended.si_status}
                                     : ExitStatus{.signal = ended.si_status};
}

void reap(ProcessId child) {
  ::waitpid(child, nullptr, 0);
}

void note_stops(ProcessId child, bool& is_stopped) {
  siginfo_t change{};
  while (::waitid(P_PID, static_cast<id_t>(child), &change, WSTOPPED | WCONTINUED | WNOHANG) == 0 &&
         change.si_pid != 0)
    is_stopped = change.si_code == CLD_STOPPED, change.si_pid = 0;
}

bool is_in_group(ProcessId process, ProcessId leader) {
  return ::getpgid(process) == leader;
}

void signal_group(ProcessId leader, int signal) {
  ::kill(-leader, signal);
}

StopState stop_state(int process) {
  StopState seen;
  std::error_code error;
  const std::filesystem::path threads = "/proc/" + std::to_string(process) + "/task";
  for (std::filesystem::directory_iterator it(threads, error), end; !error && it != end;
       it.increment(error)) {
    std::FILE* file = std::fopen((it->path() / "status").c_str(), "re");
    if (!file) continue;
    std::array<char, 256> line;
    std::uint64_t pending = 0, blocked = 0, caught = 0;
    while (std::fgets(line.data(), line.size(), file)) {
      char name[16] = {}, value[32] = {};
      if (std::sscanf(line.data(), "%15[^:]: %31s", name, value) != 2) continue;
      const std::string_view is = name;
      if (is == "State" && value[0] == 'T') seen.is_stopped = true;
      const std::uint64_t set = std::strtoull(value, nullptr, 16);
      if (is == "SigPnd" || is == "ShdPnd") pending |= set;
      if (is == "SigBlk") blocked = set;
      if (is == "SigCgt") caught = set;
    }
    std::fclose(file);
    // A thread may also be stopped before the first instruction of its handler. The signal is then blocked
    // and no longer pending. Exception: if at least 16 signals are blocked, the C library has blocked all
    // signals for a short time.
    if (std::popcount(blocked) < 16) pending |= blocked & caught;
    for (const int signal : {SIGHUP, SIGINT, SIGTERM})
      if (pending >> (signal - 1) & 1) seen.asked_by = signal;
  }
  if (!seen.is_stopped) seen.asked_by = 0;
  return seen;
}

void continue_process(int process) {
  ::kill(process, SIGCONT);
}

void end_with_line(std::string_view line, int exit_code) {
  if (has_room(standard_error)) write_some(standard_error, line);
  ::_exit(exit_code);
}

}  // namespace tg::os
