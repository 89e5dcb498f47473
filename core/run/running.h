// The runs in progress in this process, so that two threads cannot use a parameter that one of them changes.
#pragma once

#include <thread>

#include "core/run/program_state.h"

namespace tg {

// A run of `program` by this thread. Throws Error with `who` if another thread runs a program that assigns a
// parameter of this one, or uses a parameter that this one assigns.
class RunInProgress {
 public:
  RunInProgress(const Program::State& program, const char* who);
  ~RunInProgress();
  RunInProgress(const RunInProgress&) = delete;

  const Program::State& program() const { return program_; }
  std::thread::id thread() const { return thread_; }

 private:
  const Program::State& program_;
  const std::thread::id thread_ = std::this_thread::get_id();
};

}  // namespace tg
