// gradcheck's report: one line per case, details on request or for failures, the worst cases at the end, and
// the same as JSON.
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

  void add(const Case& c, std::vector<Result> results);  // prints its line
  void add(const Case& c, std::vector<Mutant> mutants);
  void incomplete(const std::string& why);  // a requested check did not run

  // Prints the worst cases and the totals.
  void finish(double seconds) const;
  // 0: all passed; 1: a mismatch, or a mutant survived, or nothing could be planted into a gradient that is
  // wrong as it is; 3: nothing ran, or a requested check could not; 4: a number is not finite. Of several, 4
  // comes before 1, and 1 before 3.
  int exit_code() const;
  std::string json() const;

 private:
  std::string replay(const Result& r) const;  // the command that runs this one check again
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
