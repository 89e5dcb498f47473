// This file is linked with every test of a build with random mutants. If TG_MUTANT_CASES=FILE is set, it
// appends a line for each case: the name, the seconds and the mutants that the case reached. The first line
// has an empty name and lists the mutants that were reached before the first case. If a case starts a process
// without tests, the mutants that this process reaches count for the case.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "random_switch.h"

namespace {

class Cases : public testing::EmptyTestEventListener {
  void OnTestProgramStart(const testing::UnitTest&) override { write("", 0); }
  void OnTestStart(const testing::TestInfo&) override {
    tg::count_mutants();
    start_ = std::chrono::steady_clock::now();
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
    write((std::string(test.test_suite_name()) + "." + test.name()).c_str(), seconds.count());
  }

  static void write(const char* name, double seconds) {
    const unsigned char* reached = tg::counted_mutants();
    std::FILE* file = std::fopen(std::getenv("TG_MUTANT_CASES"), "a");
    if (!reached || !file) std::abort();
    std::fprintf(file, "%s\t%.4f\t", name, seconds);
    for (int i = 0; i < tg::max_mutants; ++i)
      if (reached[i]) std::fprintf(file, "%d ", i);
    std::fprintf(file, "\n");
    std::fclose(file);
  }

  std::chrono::steady_clock::time_point start_;
};

const bool listening = [] {
  if (std::getenv("TG_MUTANT_CASES")) testing::UnitTest::GetInstance()->listeners().Append(new Cases);
  return true;
}();

}  // namespace
