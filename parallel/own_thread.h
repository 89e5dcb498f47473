// How this folder starts threads.
#pragma once

#include <csignal>
#include <functional>
#include <thread>

namespace tg::parallel {

// Signals are for the program's own threads.
inline std::thread start_thread(std::function<void()> f) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(std::move(f));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

}  // namespace tg::parallel
