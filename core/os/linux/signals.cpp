#include "core/os/signals.h"

#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace tg::os {

namespace signals {

const int hangup = SIGHUP, interrupt = SIGINT, terminate = SIGTERM, kill = SIGKILL, resume = SIGCONT,
          closed_pipe = SIGPIPE, file_too_large = SIGXFSZ, child_changed = SIGCHLD, timer = SIGALRM;

}  // namespace signals

namespace {

std::atomic<SignalHandler> signal_handlers[NSIG];

void on_any_signal(int signal, siginfo_t* info, void*) {
  const int before = errno;
  signal_handlers[signal].load()(signal, info->si_pid);
  errno = before;
}

}  // namespace

std::string signal_text(int signal) {
  return ::strsignal(signal);
}

bool is_crash(int signal) {
  return signal == SIGSEGV || signal == SIGABRT || signal == SIGBUS || signal == SIGFPE || signal == SIGILL ||
         signal == SIGSYS;
}

void catch_signal(int signal, SignalHandler handler, bool blocks_all) {
  signal_handlers[signal] = handler;
  struct sigaction action {};
  action.sa_sigaction = on_any_signal, action.sa_flags = SA_RESTART | SA_SIGINFO;
  if (blocks_all) sigfillset(&action.sa_mask);
  ::sigaction(signal, &action, nullptr);
}

void ignore_signal(int signal) {
  std::signal(signal, SIG_IGN);
}

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

void end_by_signal(int signal) {
  std::signal(signal, SIG_DFL);
  sigset_t set;
  sigemptyset(&set), sigaddset(&set, signal);
  ::kill(::getpid(), signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::_exit(128 + signal);
}

void set_timer(std::int64_t milliseconds) {
  itimerval in{};
  in.it_value.tv_sec = static_cast<time_t>(milliseconds / 1000);
  in.it_value.tv_usec = static_cast<suseconds_t>(milliseconds % 1000 * 1000 + 1);  // 0 would stop it
  ::setitimer(ITIMER_REAL, &in, nullptr);
}

static_assert(sizeof(sigset_t) <= sizeof(std::array<std::uint64_t, 16>));

BlockedSignals::BlockedSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, reinterpret_cast<sigset_t*>(before_.data()));
}

void BlockedSignals::unblock() {
  pthread_sigmask(SIG_SETMASK, reinterpret_cast<const sigset_t*>(before_.data()), nullptr);
}

}  // namespace tg::os
