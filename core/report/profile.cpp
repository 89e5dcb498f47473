#include <tilegrad/core/report/profile.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "core/base/messages.h"
#include "core/compile/fused_reductions.h"
#include "core/graph/op_attrs.h"

namespace tg {

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

StepTime at_ceilings(const Step& s, const Ceilings& c) {
  StepTime t;
  t.name = s.name;
  const Cost cost = work_of(s);
  t.flops = cost.flops, t.bytes = cost.bytes;
  if (c.copy > 0) t.least = t.bytes / c.copy;
  for (const auto& [dtype, rate] : c.product)
    if (!s.in.empty() && s.in[0].dtype == dtype) t.least = std::max(t.least, t.flops / rate);
  return t;
}

// A number with a unit prefix: "4.20 T".
std::string with_unit(double x) {
  const char* unit = "";
  for (const char* next : {"k", "M", "G", "T", "P"}) {
    if (x < 999.5) break;
    x /= 1000, unit = next;
  }
  return formatted(x < 10 ? "%.2f %s" : "%.0f %s", x, unit);
}

std::string short_time(double seconds) {
  return seconds < 1e-3 ? formatted("%.1f µs", seconds * 1e6) : formatted("%.3f ms", seconds * 1e3);
}

std::string row(const StepTime& t, double all) {
  return formatted("%9.4f %6.1f%% %6d %9.1f %10.1f %8.2f  ", t.seconds * 1e3, 100 * t.seconds / all, t.count,
                   t.bytes / t.seconds * 1e-9, t.flops / t.seconds * 1e-9, t.least / t.seconds) +
         t.name + "\n";
}

// The kernel that ran the step. Omitted for a fused step, because it would be too long for the table.
std::string kernel_of(const Program& program, std::size_t step) {
  return fused_text_of(*program.steps()[step].op, program.steps()[step].attrs) ? ""
                                                                               : ": " + program.choice(step);
}

// Describes the time of the communication between ranks, and the part of it during which a run waits. That
// part is the run time minus the time of all other steps. Empty without communication.
std::string exchanges_text(const Program& program, const Profile& profile) {
  double exchanges = 0, others = 0;
  for (std::size_t i = 0; i < profile.steps.size(); ++i) {
    const Step& s = program.steps()[i];
    (rank_attrs_of(*s.op, s.attrs) ? exchanges : others) += profile.steps[i].seconds;
  }
  if (exchanges == 0) return "";
  return "communication between ranks: " + short_time(exchanges) + " if run one by one, " +
         short_time(std::clamp(profile.run - others, 0.0, exchanges)) + " exposed\n";
}

void check_is_of(const Program& program, const Profile& profile) {
  if (profile.steps.size() != program.steps().size())
    throw Error("[profile] the profile belongs to a different program: got " +
                std::to_string(profile.steps.size()) + " steps, expected " +
                std::to_string(program.steps().size()));
}

}  // namespace

Profile profile(Program& program, const Ceilings& ceilings, int runs, const std::function<Pending()>& start) {
  runs = std::max(runs, 1);
  const auto started = [&] {
    if (start) return start();
    program.run();
    return program.fetch_later({});
  };
  for (int i = 0; i < 3; ++i) started().wait();
  std::vector<double> whole, host;
  for (int i = 0; i < runs; ++i) {
    const double begin = now();
    const Pending run = started();
    host.push_back(now() - begin);
    run.wait();
    whole.push_back(now() - begin);
  }
  std::vector<std::vector<double>> seconds(program.steps().size());
  program.profile();
  for (int i = 0; i < runs; ++i) {
    const std::vector<double> once = program.profile();
    for (std::size_t s = 0; s < once.size(); ++s) seconds[s].push_back(once[s]);
  }
  Profile p{median(whole), median(host), ceilings, {}};
  for (std::size_t s = 0; s < seconds.size(); ++s) {
    p.steps.push_back(at_ceilings(program.steps()[s], p.ceilings));
    p.steps.back().seconds = median(seconds[s]);
  }
  return p;
}

std::vector<StepTime> by_op(const Program& program, const Profile& profile) {
  check_is_of(program, profile);
  std::map<std::string, StepTime> kinds;
  for (std::size_t i = 0; i < profile.steps.size(); ++i) {
    const StepTime& t = profile.steps[i];
    StepTime& sum = kinds[kind_of(program.steps()[i])];
    if (sum.name.empty()) sum = {kind_of(program.steps()[i]), 0};
    ++sum.count, sum.seconds += t.seconds, sum.flops += t.flops, sum.bytes += t.bytes, sum.least += t.least;
  }
  std::vector<StepTime> sorted;
  for (auto& [name, sum] : kinds) sorted.push_back(std::move(sum));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const StepTime& a, const StepTime& b) { return a.seconds > b.seconds; });
  return sorted;
}

std::string profile_text(const Program& program, const Profile& profile, std::size_t longest) {
  check_is_of(program, profile);
  double all = 0;
  for (const StepTime& t : profile.steps) all += t.seconds;
  std::string s = "one run: " + short_time(profile.run) +
                  ", the call that starts it: " + short_time(profile.host) + "; its " +
                  std::to_string(profile.steps.size()) + " steps, run one by one: " + short_time(all) + "\n" +
                  exchanges_text(program, profile);
  s += "ceilings: copy " + with_unit(profile.ceilings.copy) + "B/s";
  for (const auto& [dtype, rate] : profile.ceilings.product)
    s += ", matmul " + std::string(name_of(dtype)) + " " + with_unit(rate) + "FLOP/s";
  const std::string head =
      formatted("%9s %7s %6s %9s %10s %8s  ", "ms", "share", "steps", "GB/s", "GFLOP/s", "ceiling");
  s += "\n\n" + head + "op\n";
  bool is_above = false;
  for (const StepTime& t : by_op(program, profile)) {
    s += row(t, all);
    is_above = is_above || t.least > 1.2 * t.seconds;
  }
  if (is_above)
    s += "A share above 1.2: the data was read from caches, or the machine was busy while its ceilings were "
         "measured.\n";
  std::vector<StepTime> steps = profile.steps;
  for (std::size_t i = 0; i < steps.size(); ++i) steps[i].name += kernel_of(program, i);
  std::stable_sort(steps.begin(), steps.end(),
                   [](const StepTime& a, const StepTime& b) { return a.seconds > b.seconds; });
  steps.resize(std::min(longest, steps.size()));
  s += "\n" + head + "step\n";
  for (const StepTime& t : steps) s += row(t, all);
  return s;
}

}  // namespace tg
