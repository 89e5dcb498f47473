// Signals that this process catches, ignores and blocks, and its timer.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "core/os/process.h"

namespace tg::os {

namespace signals {  // their numbers

extern const int hangup, interrupt, terminate, kill, resume, closed_pipe, file_too_large, child_changed,
    timer;

}  // namespace signals

std::string signal_text(int signal);  // "Killed"
bool is_crash(int signal);            // whether the system sends it for a program fault

// Calls `handler` when this process receives the signal. The handler may call only async-signal-safe
// functions. Afterwards errno is restored, and interrupted system calls continue. If `blocks_all` is set, no
// other signal interrupts the handler.
using SignalHandler = void (*)(int signal, ProcessId sender);
void catch_signal(int signal, SignalHandler handler, bool blocks_all = false);
void ignore_signal(int signal);
bool is_ignored(int signal);

// Ends this process by the default action of the signal. Async-signal-safe.
[[noreturn]] void end_by_signal(int signal);

// Sends signals::timer to this process once, after the given time. Cancels the timer of an earlier call.
// Async-signal-safe.
void set_timer(std::int64_t milliseconds);

// While an object of this class exists, the calling thread receives no signals. Threads that are started
// during that time never receive signals.
class BlockedSignals {
 public:
  BlockedSignals();
  ~BlockedSignals() { unblock(); }
  BlockedSignals(const BlockedSignals&) = delete;
  void unblock();  // before destruction

 private:
  std::array<std::uint64_t, 16> before_;  // large enough for a system's signal set
};

}  // namespace tg::os
