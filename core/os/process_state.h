// How processes of one job see each other, and end.
#pragma once

#include <string_view>

namespace tg::os {

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
