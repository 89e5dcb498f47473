// Processes: this one, programs that it starts, and processes of the same job.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tg::os {

using ProcessId = int;

ProcessId process_id();  // of this process
ProcessId parent_process_id();

// A program to start, and the differences between its process and this process.
struct Command {
  static constexpr int inherited = -1,
                       nothing = -2;  // special values of a descriptor: the same stream, or /dev/null

  std::vector<std::string> words;  // program name, which is looked up in PATH, and arguments
  // Variables to set. A variable without a value is removed.
  std::map<std::string, std::optional<std::string>> environment;
  int input = inherited, output = inherited, errors = inherited;
  int end_signal = 0;                // signal to it when this process exits; 0: none
  std::vector<int> default_signals;  // signals for which it gets the default action
  bool leads_group = false;          // whether it leads a new process group, for signal_group()
  int report = -1;                   // write end of a pipe whose read end start_error() reads; −1: none
};
// Sets `process`. Returns 0, or an error number if the system cannot create the process.
int start(const Command& command, ProcessId& process);
// Reads a nonblocking pipe whose write end was Command::report. Returns 0 if the program runs, an error
// number if it cannot be started, or nothing if neither is known yet.
std::optional<int> start_error(int report);

struct ExitStatus {
  int code = 0;
  int signal = 0;  // the signal that killed it; 0: it exited with the code
};
// Empty while the child runs. After its exit, no other process gets its id before reap().
std::optional<ExitStatus> exit_status(ProcessId child);
void reap(ProcessId child);  // waits until it has exited, and releases its id
// Changes is_stopped if the child has stopped or continued since the last call.
void note_stops(ProcessId child, bool& is_stopped);

bool is_in_group(ProcessId process, ProcessId leader);
void signal_group(ProcessId leader, int signal);

// Whether a process is stopped, and the pending exit signal. A stopped process cannot handle the signal. 0
// means that no exit signal is pending.
struct StopState {
  bool is_stopped = false;
  int asked_by = 0;
};
StopState stop_state(int process);

// Continues a stopped process.
void continue_process(int process);

// Writes the line to standard error, if this does not block, and exits immediately, without destructors. It
// does not use stdio, because other threads may hold its locks.
[[noreturn]] void end_with_line(std::string_view line, int exit_code);

}  // namespace tg::os
