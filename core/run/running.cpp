#include "core/run/program_state.h"

#include <algorithm>
#include <mutex>
#include <vector>

namespace tg {

namespace {

struct Runs {
  std::mutex mutex;
  std::vector<const RunInProgress*> runs;
};
Runs& all_runs() {
  static auto& runs = *new Runs;
  return runs;
}

// A parameter that both lists contain, or null.
const Parameter* common(const std::vector<Parameter>& a, const std::vector<Parameter>& b) {
  for (const Parameter& p : a)
    if (std::ranges::any_of(b, [&](const Parameter& q) { return p.key() == q.key(); })) return &p;
  return nullptr;
}

}  // namespace

RunInProgress::RunInProgress(const Program::State& program, const char* who) : program_(program) {
  Runs& all = all_runs();
  const std::lock_guard lock(all.mutex);
  for (const RunInProgress* other : all.runs) {
    if (other->thread() == thread_) continue;
    const Parameter* changed = common(other->program().assigned, program.parameters);
    if (!changed) changed = common(program.assigned, other->program().parameters);
    if (changed)
      throw Error("[" + std::string(who) + "] parameter " + changed->name() +
                  " is in use by a program that another thread runs, and one of the two assigns it");
  }
  all.runs.push_back(this);
}

RunInProgress::~RunInProgress() {
  Runs& all = all_runs();
  const std::lock_guard lock(all.mutex);
  std::erase(all.runs, this);
}

void Parameter::refuse_if_running(const char* who) const {
  Runs& all = all_runs();
  const std::lock_guard lock(all.mutex);
  for (const RunInProgress* run : all.runs)
    if (run->thread() != std::this_thread::get_id() &&
        std::ranges::any_of(run->program().parameters, [&](const Parameter& p) { return p.key() == key(); }))
      throw Error("[" + std::string(who) + "] parameter " + name() +
                  " is in use by a program that another thread runs");
}

}  // namespace tg
