#include <tilegrad/core/run/log.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include <tilegrad/core/run/cost.h>
#include "core/base/messages.h"
#include "core/run/program_state.h"

namespace tg {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string milliseconds(double seconds) {
  return formatted("%.3f ms", seconds * 1e3);
}

// The dtypes and shapes of operands: "f32[2, 3] f32[2]".
std::string operands_text(std::span<const Arg> args) {
  std::string s;
  for (const Arg& a : args)
    s += (s.empty() ? "" : " ") + std::string(name_of(a.dtype)) + a.layout.shape.text();
  return s;
}

// The number of steps of each kind, largest first: "matmul 48, rope 16".
std::string kinds_of(std::span<const Step> steps) {
  std::vector<std::pair<std::string, int>> kinds;
  for (const Step& s : steps) {
    const std::string kind = kind_of(s);
    const auto same = [&](const auto& k) { return k.first == kind; };
    const auto known = std::find_if(kinds.begin(), kinds.end(), same);
    if (known == kinds.end())
      kinds.emplace_back(kind, 1);
    else
      ++known->second;
  }
  std::stable_sort(kinds.begin(), kinds.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string s;
  for (const auto& [kind, count] : kinds) s += (s.empty() ? "" : ", ") + kind + " " + std::to_string(count);
  return s;
}

}  // namespace

int log_level() {
  const char* s = std::getenv("TG_LOG");
  if (!s || *s == '\0') return 0;
  if (s[0] >= '0' && s[0] <= '4' && s[1] == '\0') return s[0] - '0';
  throw Error("[log] TG_LOG is '" + std::string(s) + "', expected 0 to 4");
}

std::unique_ptr<ProgramLog> ProgramLog::begin() {
  const int level = log_level();
  return level == 0 ? nullptr : std::unique_ptr<ProgramLog>(new ProgramLog(level));
}

ProgramLog::ProgramLog(int level)
    : level_(level), number_([] {
        static std::atomic<int> programs{0};
        return ++programs;
      }()) {}

void ProgramLog::compiled(const Program::State& p, std::span<const PlannedBuffer> plan) {
  std::string s = formatted("[program %d] %s: %zu nodes, %zu steps", number_, p.device.text().c_str(),
                            p.graph->nodes().size(), p.steps.size());
  if (!p.steps.empty()) s += " (" + kinds_of(p.steps) + ")";
  s += formatted("; peak %zu bytes, %zu of them parameters; %s in ", p.memory.peak(), p.memory.parameters,
                 p.executable ? "compiled" : "planned, not to run,");
  s += milliseconds(seconds_since(start_)) + "\n";
  if (level_ >= 3)
    for (const PlannedBuffer& b : plan) {
      s += formatted("[program %d] %-9s at %10zu, %10zu bytes, ", number_, b.kind.c_str(), b.offset, b.bytes);
      s += b.kind == "arena" ? formatted("steps %d to %d", b.first, b.last) : "always";
      s += ": " + b.holds + "\n";
    }
  if (level_ >= 4 && p.executable)
    for (std::size_t i = 0; i < p.steps.size(); ++i)
      s += formatted("[program %d] step %zu ", number_, i) + p.steps[i].name + ": " +
           p.executable->choice(i) + "\n";
  std::fputs(s.c_str(), stderr);
}

void ProgramLog::ran(const Program::State& p, double seconds, std::span<const double> steps) {
  ++runs_;
  std::string s;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& step = p.steps[i];
    const Cost work = work_of(step);
    const double least = std::max(steps[i], 1e-9);  // a step may be shorter than the clock's resolution
    s += formatted("[program %d] step %zu: %9.1f µs %8.1f GB/s %8.1f GFLOP/s  ", number_, i, steps[i] * 1e6,
                   work.bytes / least * 1e-9, work.flops / least * 1e-9);
    s += step.name + ": " + operands_text(step.in) + " → " + operands_text(step.out) + " " +
         at_line(step.where) + "\n";
  }
  s += formatted("[program %d] run %lld: ", number_, static_cast<long long>(runs_)) + milliseconds(seconds) +
       "\n";
  std::fputs(s.c_str(), stderr);
}

}  // namespace tg
