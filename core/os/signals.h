// Which signals this process catches, ignores and blocks, and its timer.
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
bool is_crash(int signal);            // one by which the system ends a faulty program

// `handler` may call only what is safe in a signal handler. It need not keep errno, and the system calls that
// it interrupts continue. blocks_all: no other signal comes while it runs.
using SignalHandler = void (*)(int signal, ProcessId sender);
void catch_signal(int signal, SignalHandler handler, bool blocks_all = false);
void ignore_signal(int signal);
bool is_ignored(int signal);

// Safe in a signal handler. Ends this process as the signal does if nothing catches it.
[[noreturn]] void end_by_signal(int signal);

// Safe in a signal handler. signals::timer comes once, after this time; an earlier call no longer counts.
void set_timer(std::int64_t milliseconds);

// While it exists, no signal comes to the calling thread. A thread that it starts meanwhile never gets one.
class BlockedSignals {
 public:
  BlockedSignals();
  ~BlockedSignals() { unblock(); }
  BlockedSignals(const BlockedSignals&) = delete;
  void unblock();  // earlier

 private:
  std::array<std::uint64_t, 16> before_;  // has room for a system's set of signals
};

}  // namespace tg::os
