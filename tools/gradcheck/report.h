// The report of gradcheck: one line per case, details of failures (or of all checks, on request), and the
// worst cases at the end. The report can also be written as JSON.
#pragma once

#include <string>
#include <vector>

#include <tilegrad/autograd/gradcheck/gradcheck.h>

namespace tg::gradcheck {

struct Run {
  std::string program;  // argv[0]
  Options options;
  std::vector<std::string> plugins;
  bool verbose = false;
  int ranks = 1;
};

class Report {
 public:
  explicit Report(Run run) : run_(std::move(run)) {}

  void add(const Case& c, std::vector<Result> results);  // prints one line
  void add(const Case& c, std::vector<Mutant> mutants);
  void incomplete(const std::string& why);  // counts and prints a requested check that did not run

  // Prints the worst cases and the totals.
  void finish(double seconds) const;
  // The exit code. If several apply, 4 precedes 1, and 1 precedes 3.
  // - 0: all checks passed
  // - 1: a mismatch, a surviving mutant, or a case whose gradient is already wrong, so that no bug could be
  //   injected
  // - 3: nothing ran, or a requested check could not run
  // - 4: a number is not finite
  int exit_code() const;
  std::string json() const;

 private:
  std::string replay(const Result& r) const;  // the command that repeats only this check
  void details(const Result& r) const;
  void print_worst(const char* title, bool (*belongs)(const Result&)) const;
  int count(Status status) const;

  const Run run_;
  std::vector<Result> results_;
  std::vector<Mutant> mutants_;
  std::vector<std::string> incomplete_;
  int cases_ = 0;
};

}  // namespace tg::gradcheck
