#include "core/os/process_state.h"

#include <array>
#include <bit>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <poll.h>
#include <unistd.h>

namespace tg::os {

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
    // A thread may also be stopped before the first instruction of its handler, which blocks the signal. The
    // system's library blocks all signals for moments.
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
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&room, 1, 0) > 0) (void)!::write(STDERR_FILENO, line.data(), line.size());
  _exit(exit_code);
}

}  // namespace tg::os
