// How this folder starts threads.
#pragma once

#include <functional>
#include <thread>

#include "core/os/signals.h"

namespace tg::parallel {

// Signals are for the program's own threads.
inline std::thread start_thread(std::function<void()> f) {
  const os::BlockedSignals blocked;
  return std::thread(std::move(f));
}

}  // namespace tg::parallel
