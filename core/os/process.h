// Processes: this one, the programs that it starts, and those of the same job.
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

// A program to start, and what differs from this process.
struct Command {
  static constexpr int inherited = -1, nothing = -2;  // instead of a descriptor: the same stream, /dev/null

  std::vector<std::string> words;  // its name, which is looked up in PATH, and its arguments
  // Variables that are set or, without a value, removed.
  std::map<std::string, std::optional<std::string>> environment;
  int input = inherited, output = inherited, errors = inherited;
  int end_signal = 0;                // which it receives when this process ends; 0: none
  std::vector<int> default_signals;  // which it neither catches nor ignores
  bool leads_group = false;          // of its own processes, for signal_group()
  int report = -1;                   // the writer of a pipe, for start_error(); -1: none
};
// Sets `process`. Returns 0, or an error number if the system cannot create the process.
int start(const Command& command, ProcessId& process);
// Reads a nonblocking pipe, whose writer was Command::report. 0: the program runs. Otherwise the error number
// if it cannot be started, or nothing if that is not known yet.
std::optional<int> start_error(int report);

struct ExitStatus {
  int code = 0;
  int signal = 0;  // which ended it; 0: it exited with the code
};
// Nothing if the child runs. After its end, no other process gets its number before reap().
std::optional<ExitStatus> exit_status(ProcessId child);
void reap(ProcessId child);  // waits for its end
// Changes is_stopped if the child has stopped or continued since the last call.
void note_stops(ProcessId child, bool& is_stopped);

bool is_in_group(ProcessId process, ProcessId leader);
void signal_group(ProcessId leader, int signal);

// Whether a process is stopped, and the signal that asks it to end, which it cannot handle then; 0: none.
struct StopState {
  bool is_stopped = false;
  int asked_by = 0;
};
StopState stop_state(int process);

// Lets a stopped process go on.
void continue_process(int process);

// Ends this process immediately, without destructors. Before, it writes the line to standard error if that
// has room: not by stdio, which the program may hold, and not if nobody reads.
[[noreturn]] void end_with_line(std::string_view line, int exit_code);

}  // namespace tg::os
