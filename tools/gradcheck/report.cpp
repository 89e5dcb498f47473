#include "tools/gradcheck/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include <tilegrad/io/files/json.h>

namespace tg::gradcheck {

namespace {

std::string dtype_text(const Result& r) {
  return std::string(tg::name_of(r.dtype));
}

// Whether a is listed before b. Non-finite results are first, then mismatches, then all other results, sorted
// by the ratio of error to bound.
bool worse(const Result& a, const Result& b) {
  if (a.status != b.status) return a.status > b.status;
  return a.ratio > b.ratio;
}

std::string plain(double x) {
  char s[32];
  std::snprintf(s, sizeof s, "%.3g", x);
  return s;
}

std::string quoted(const std::string& s) {
  return s.find(' ') == std::string::npos ? s : "'" + s + "'";
}

constexpr int shown_failures = 3;  // per case

const char* name_of_fate(Mutant::Fate fate) {
  static const char* const names[] = {"caught", "survived", "no change", "not injected", "refused"};
  return names[fate];
}

int number_of(const std::vector<Mutant>& mutants, Mutant::Fate fate) {
  return static_cast<int>(
      std::count_if(mutants.begin(), mutants.end(), [&](const Mutant& m) { return m.fate == fate; }));
}

// The kind of an injected bug: "sign" for "sign of input 1".
std::string kind_of(const std::string& fault) {
  const std::size_t end = std::min(fault.find(" of "), fault.find(": "));
  return fault.substr(0, end);
}

// The reasons why bugs were not injected, with counts, such as "247 stale inputs: the gradient stays the
// same". The most frequent reason is first.
std::vector<std::pair<int, std::string>> reasons(const std::vector<Mutant>& mutants) {
  std::map<std::string, int> counted;
  for (const Mutant& m : mutants)
    if (m.fate == Mutant::equivalent || m.fate == Mutant::not_injectable)
      ++counted[kind_of(m.fault) +
                (m.fate == Mutant::not_injectable ? ": recording it throws" : ": " + m.why)];
  std::vector<std::pair<int, std::string>> list;
  for (const auto& [what, n] : counted) list.emplace_back(n, what);
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  return list;
}

}  // namespace

void Report::add(const Case& c, std::vector<Result> results) {
  ++cases_;
  if (results.empty()) return incomplete(c.text() + ": none of the views applies to its inputs");
  const Result& worst = *std::min_element(results.begin(), results.end(), worse);
  std::int64_t checked = 0, skipped = 0, resampled = 0;
  for (const Result& r : results) {
    checked += r.checked;
    skipped += r.skipped;
    resampled += r.resampled;
  }
  std::string line = worst.status == Status::refused ? worst.note
                     : worst.ratio > 0 ? plain(worst.ratio) + " of its bound: " + dtype_text(worst) + " " +
                                             name_of(worst.view)
                                       : "exact";
  if (resampled > 0) line += ", " + std::to_string(resampled) + " points drawn again";
  if (skipped > 0) line += ", " + std::to_string(skipped) + " elements skipped";
  std::printf("%-11s %-32s %2d checks %6lld numbers  %s\n", name_of(worst.status).c_str(), c.text().c_str(),
              static_cast<int>(results.size()), static_cast<long long>(checked), line.c_str());
  int failures = 0;
  for (const Result& r : results) {
    const bool failed = r.status != Status::ok && r.status != Status::refused;
    failures += failed;
    if (run_.verbose || (failed && failures <= shown_failures)) details(r);
  }
  if (!run_.verbose && failures > shown_failures)
    std::printf("  and %d more; -v shows them\n", failures - shown_failures);
  std::fflush(stdout);
  results_.insert(results_.end(), results.begin(), results.end());
}

void Report::details(const Result& r) const {
  std::printf("  %-10s %s %s: %lld numbers, max abs %s, max rel %s, %s of the bound\n",
              name_of(r.status).c_str(), dtype_text(r).c_str(), name_of(r.view).c_str(),
              static_cast<long long>(r.checked), plain(r.max_abs).c_str(), plain(r.max_rel).c_str(),
              plain(r.ratio).c_str());
  if (!r.worst.where.empty()) {
    std::printf("    worst: %s: analytic %.17g, %s %.17g, apart %s ulp", r.worst.where.c_str(),
                r.worst.analytic, r.worst.h > 0 ? "numeric" : "in f64", r.worst.numeric,
                plain(r.worst.ulp).c_str());
    if (r.worst.h > 0) std::printf(", h %s", plain(r.worst.h).c_str());
    std::printf("\n");
  }
  if (!r.note.empty()) std::printf("    %s\n", r.note.c_str());
  if (r.status != Status::ok && r.status != Status::refused)
    std::printf("    again: %s\n", replay(r).c_str());
}

void Report::add(const Case& c, std::vector<Mutant> mutants) {
  ++cases_;
  const int caught = number_of(mutants, Mutant::caught), survived = number_of(mutants, Mutant::survived);
  const bool refused = number_of(mutants, Mutant::refused) > 0;
  std::printf("%-11s %-32s %d of %d bugs caught, %d change nothing, %d cannot be recorded\n",
              refused    ? "REFUSED"
              : survived ? "SURVIVED"
                         : "ok",
              c.text().c_str(), caught, caught + survived, number_of(mutants, Mutant::equivalent),
              number_of(mutants, Mutant::not_injectable));
  for (const Mutant& m : mutants) {
    const bool bad = m.fate == Mutant::survived || m.fate == Mutant::refused;
    if (!bad && !run_.verbose) continue;
    std::printf("  %-11s %s, %s %s", name_of_fate(m.fate), m.fault.c_str(), dtype_text(m.result).c_str(),
                name_of(m.result.view).c_str());
    if (m.fate == Mutant::caught) std::printf(": %s times the bound", plain(m.result.ratio).c_str());
    std::printf("%s%s\n", m.why.empty() ? "" : ": ", m.why.c_str());
    if (m.fate == Mutant::refused && m.result.status != Status::ok) details(m.result);
  }
  std::fflush(stdout);
  mutants_.insert(mutants_.end(), mutants.begin(), mutants.end());
}

void Report::incomplete(const std::string& why) {
  incomplete_.push_back(why);
  std::printf("%-11s %s\n", "not run", why.c_str());
}

int Report::count(Status status) const {
  return static_cast<int>(
      std::count_if(results_.begin(), results_.end(), [&](const Result& r) { return r.status == status; }));
}

void Report::print_worst(const char* title, bool (*belongs)(const Result&)) const {
  std::vector<Result> ranked;
  for (const Result& r : results_)
    if (belongs(r) && r.status != Status::refused && r.ratio > 0) ranked.push_back(r);
  if (ranked.empty()) return;
  std::sort(ranked.begin(), ranked.end(), worse);
  std::printf("\n%s\n", title);
  for (std::size_t i = 0; i < std::min<std::size_t>(ranked.size(), 4); ++i)
    std::printf("  %-10s %s of its bound  %s %s %s: %s\n", name_of(ranked[i].status).c_str(),
                plain(ranked[i].ratio).c_str(), ranked[i].text().c_str(), dtype_text(ranked[i]).c_str(),
                name_of(ranked[i].view).c_str(), ranked[i].worst.where.c_str());
}

// The plural ending for a count.
static const char* ending(std::size_t n) {
  return n == 1 ? "" : "s";
}

void Report::finish(double seconds) const {
  print_worst("worst first, against finite differences:", [](const Result& r) { return r.dtype == f64; });
  print_worst("worst first, other dtypes against f64:", [](const Result& r) { return r.dtype != f64; });
  if (!mutants_.empty()) {
    const int caught = number_of(mutants_, Mutant::caught), refused = number_of(mutants_, Mutant::refused);
    std::printf("\nnot injected:\n");
    for (const auto& [n, what] : reasons(mutants_)) std::printf("  %5d %s\n", n, what.c_str());
    std::printf("\n%d of %d injected bugs caught, %d case%s refused; ", caught,
                caught + number_of(mutants_, Mutant::survived), refused, ending(refused));
  } else {
    std::printf(
        "\n%d case%s, %d check%s: %d ok, %d mismatch, %d non-finite, %d without a gradient, %d not "
        "supported; ",
        cases_, ending(cases_), static_cast<int>(results_.size()), ending(results_.size()), count(Status::ok),
        count(Status::mismatch), count(Status::non_finite), count(Status::refused),
        count(Status::unsupported));
  }
  std::printf("seed %llu, %.1f s\n", static_cast<unsigned long long>(run_.options.seed), seconds);
}

int Report::exit_code() const {
  const bool refused_as_non_finite = std::any_of(mutants_.begin(), mutants_.end(), [](const Mutant& m) {
    return m.fate == Mutant::refused && m.result.status == Status::non_finite;
  });
  if (count(Status::non_finite) > 0 || refused_as_non_finite) return 4;
  const bool survived = number_of(mutants_, Mutant::survived) + number_of(mutants_, Mutant::refused) > 0;
  if (count(Status::mismatch) > 0 || survived) return 1;
  const bool faults =
      std::any_of(mutants_.begin(), mutants_.end(), [](const Mutant& m) { return m.fate == Mutant::caught; });
  if (!incomplete_.empty() || count(Status::unsupported) > 0 || (results_.empty() && !faults)) return 3;
  return 0;
}

std::string Report::replay(const Result& r) const {
  std::string s = run_.program;
  if (run_.ranks > 1) s = "launch -n " + std::to_string(run_.ranks) + " " + s + " --collectives";
  for (const std::string& p : run_.plugins) s += " --plugin " + quoted(p);
  s += " --op " + quoted(r.text());
  if (run_.ranks == 1) s += " --views " + name_of(r.view);
  s += " --dtypes " + dtype_text(r);
  if (r.order != 1) s += " --order " + std::to_string(r.order);
  if (run_.options.fast) s += " --quick";
  return s + " --seed " + std::to_string(run_.options.seed) + " -v";
}

std::string Report::json() const {
  std::string s = "{\"tool\": \"gradcheck\", \"seed\": " + std::to_string(run_.options.seed) +
                  ", \"order\": " + std::to_string(run_.options.order) +
                  ", \"fast\": " + (run_.options.fast ? "true" : "false") +
                  ", \"exit_code\": " + std::to_string(exit_code()) + ",\n \"results\": [";
  const auto text = [](const char* name, const std::string& value) {
    return "\"" + std::string(name) + "\": " + io::json_string(value);
  };
  const auto number = [](const char* name, double value) {
    return "\"" + std::string(name) + "\": " + io::json_number(value);
  };
  bool first = true;
  for (const Result& r : results_) {
    s += std::string(first ? "" : ",") + "\n  {" + text("op", r.owner) + ", " + text("sample", r.name) +
         ", " + text("view", name_of(r.view)) + ", " + text("dtype", dtype_text(r)) + ", " +
         number("order", r.order) + ", " + text("status", name_of(r.status)) + ", " +
         number("checked", static_cast<double>(r.checked)) + ", " +
         number("skipped", static_cast<double>(r.skipped)) + ", " +
         number("resampled", static_cast<double>(r.resampled)) + ", " +
         number("special", static_cast<double>(r.special)) + ", " +
         number("undecided", static_cast<double>(r.undecided)) + ", " +
         number("rules", static_cast<double>(r.rules)) + ", " + number("max_abs", r.max_abs) + ", " +
         number("max_rel", r.max_rel) + ", " + number("share_of_bound", r.ratio) + ", " +
         text("worst", r.worst.where) + ", " + number("analytic", r.worst.analytic) + ", " +
         number("numeric", r.worst.numeric) + ", " + number("h", r.worst.h) + ", " +
         number("ulp", r.worst.ulp) + ", " + text("note", r.note) + ", " + text("replay", replay(r)) + "}";
    first = false;
  }
  s += "],\n \"mutants\": [";
  first = true;
  for (const Mutant& m : mutants_) {
    s += std::string(first ? "" : ",") + "\n  {" + text("op", m.owner) + ", " + text("sample", m.name) +
         ", " + text("fault", m.fault) + ", " + text("view", name_of(m.result.view)) + ", " +
         text("dtype", dtype_text(m.result)) + ", " + text("fate", name_of_fate(m.fate)) + ", " +
         text("why", m.why) + "}";
    first = false;
  }
  s += "],\n \"not_run\": [";
  for (std::size_t i = 0; i < incomplete_.size(); ++i) s += (i ? ", " : "") + io::json_string(incomplete_[i]);
  return s + "]}\n";
}

}  // namespace tg::gradcheck
