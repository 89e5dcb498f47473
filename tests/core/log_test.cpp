// Tests TG_LOG. Each level reports its own lines and the lines of all lower levels. Without TG_LOG, nothing
// is reported.
#include <tilegrad/core/run/log.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include <tilegrad/tilegrad.h>
#include "core/compile/memory_plan.h"
#include "tests/support/lines.h"

namespace tg {
namespace {

using testing::lines;
using testing::lines_with;

class Log : public ::testing::Test {
 protected:
  ~Log() override { unsetenv("TG_LOG"); }

  // Compiles a program, runs it `runs` times, and returns the log at a level. A null level means that TG_LOG
  // is not set.
  static std::string log_of(const char* level, int runs = 1, const CompileOptions& options = {.threads = 1}) {
    if (level)
      setenv("TG_LOG", level, 1);
    else
      unsetenv("TG_LOG");
    ::testing::internal::CaptureStderr();
    Graph g;
    const Tensor x = g.input("x", {1, 2, 40, 16});
    const Tensor w = g.param(weight());
    const Tensor o = flash_attn(x, x, x, {.causal = true}).o;
    const Tensor y = sum(gelu(matmul(o, w) * 2));
    Program program = compile(g, {y}, options);
    for (int i = 0; i < runs && !options.plan_only; ++i) program.run({{x, std::vector<float>(1280, 0.5f)}});
    return ::testing::internal::GetCapturedStderr();
  }
  static const Parameter& weight() {
    static const Parameter w("w", Array({16, 16}, f32));
    return w;
  }
};

TEST_F(Log, IsEmptyUnlessRequested) {
  EXPECT_EQ(log_of(nullptr), "");
  EXPECT_EQ(log_of(""), "");
  EXPECT_EQ(log_of("0"), "");
}

TEST_F(Log, Level1ReportsProgramsAndRuns) {
  const std::string text = log_of("1", 3);
  EXPECT_EQ(lines(text), 4) << text;
  EXPECT_EQ(lines_with(text, {"[program ", "cpu: ", " nodes, 3 steps (", "matmul 1", "flash_attn 1",
                              "fused to sum 1", "peak ", "1024 of them parameters", "compiled in ", " ms"}),
            1)
      << text;
  for (const char* run : {"run 1: ", "run 2: ", "run 3: "})
    EXPECT_EQ(lines_with(text, {run, " ms"}), 1) << text;
}

TEST_F(Log, Level2ReportsTheStepsOfEveryRun) {
  const std::string text = log_of("2", 2);
  EXPECT_EQ(lines(text), 1 + 2 * (3 + 1)) << text;
  for (const char* step : {"step 0: ", "step 1: ", "step 2: "})
    EXPECT_EQ(lines_with(text, {step, " µs", "GB/s", "GFLOP/s", " → ", "(log_test.cpp:"}), 2) << text;
  EXPECT_EQ(lines_with(text, {"flash_attn: f32[1, 2, 40, 16] f32[1, 2, 40, 16]",
                              "→ f32[1, 2, 40, 16] f32[1, 2, 40]"}),
            2)
      << text;
}

TEST_F(Log, TheTimeOfARunIsTheSumOfItsSteps) {
  const std::string text = log_of("2");
  double of_steps = 0;  // µs
  for (const char* name : {"step 0: ", "step 1: ", "step 2: "}) {
    const std::size_t at = text.find(name);
    ASSERT_NE(at, std::string::npos) << text;
    of_steps += std::atof(text.c_str() + at + std::strlen(name));
  }
  const std::size_t run = text.find("run 1: ");
  ASSERT_NE(run, std::string::npos) << text;
  const double of_run = std::atof(text.c_str() + run + std::strlen("run 1: "));  // ms
  EXPECT_NEAR(of_run * 1000, of_steps, 1) << text;  // each time is printed with a few digits
}

TEST_F(Log, Level3ReportsEveryBuffer) {
  const std::string text = log_of("3");
  const std::string before = log_of("2");
  const int buffers = lines(text) - lines(before);
  EXPECT_EQ(lines_with(text, {" at ", " bytes, "}), buffers) << text;
  EXPECT_EQ(lines_with(text, {"parameter at ", "1024 bytes, always: w f32[16, 16]"}), 1) << text;
  EXPECT_EQ(lines_with(text, {"input     at ", "5120 bytes, always: x f32[1, 2, 40, 16]"}), 1) << text;
  EXPECT_EQ(lines_with(text, {"result    at ", "4 bytes, always: sum f32[]"}), 1) << text;
  EXPECT_EQ(lines_with(text, {"arena     at ", "5120 bytes, steps 0 to 1: flash_attn f32[1, 2, 40, 16]"}), 1)
      << text;
}

TEST_F(Log, TheBuffersOfLevel3AreASoundPlanOfTheReportedSize) {
  // No two buffers may overlap at the reported offsets during the reported lifetimes.
  const std::string text = log_of("3");
  std::vector<Lifetime> lives;
  Placement placement;
  for (std::size_t at = text.find("arena "); at != std::string::npos; at = text.find("arena ", at + 1)) {
    std::size_t offset = 0, bytes = 0;
    int first = 0, last = 0;
    ASSERT_EQ(std::sscanf(text.c_str() + at, "arena at %zu, %zu bytes, steps %d to %d", &offset, &bytes,
                          &first, &last),
              4);
    lives.push_back({bytes, first, last});
    placement.offset.push_back(offset);
    placement.peak = std::max(placement.peak, offset + bytes);
  }
  EXPECT_GE(lives.size(), 3u);
  EXPECT_TRUE(plan_is_sound(lives, placement)) << text;
}

TEST_F(Log, Level4ReportsHowEachStepRuns) {
  const std::string text = log_of("4"), before = log_of("3");
  EXPECT_EQ(lines(text) - lines(before), 3) << text;
  EXPECT_EQ(lines_with(text, {"flash_attn: ", "queries × 40 keys", "by one thread"}), 1) << text;
  EXPECT_EQ(lines_with(text, {"matmul: ", "register tiles", "by one thread"}), 1) << text;
  EXPECT_EQ(lines_with(text, {"sum: ", "fused mul(in0, 2) → gelu(%0) → sum(%1) over axes [0, 1, 2, 3]"}), 1)
      << text;
  const std::string shared = log_of("4", 0, {.threads = 3});
  EXPECT_EQ(lines_with(shared, {"flash_attn: ", "shared by 3 threads"}), 1) << shared;
}

TEST_F(Log, PlanOnlyProgramReportsIt) {
  const std::string text = log_of("4", 0, {.plan_only = true});
  EXPECT_EQ(lines_with(text, {"3 steps", "planned, not to run, in "}), 1) << text;
  EXPECT_EQ(lines_with(text, {"arena "}), lines_with(log_of("4"), {"arena "}));
}

TEST_F(Log, ResultsAreTheSameAtEveryLevel) {
  Graph g;
  Parameter p("p", Array::of<float>({3}, {1, 2, 3}));
  const Tensor x = g.param(p), noise = uniform(g, {3});
  std::vector<Array> results;
  for (const char* level : {"0", "1", "2", "4"}) {
    setenv("TG_LOG", level, 1);
    p.write(Array::of<float>({3}, {1, 2, 3}));
    ::testing::internal::CaptureStderr();
    Program program = compile(g, {noise}, {.assign = {{p, x * 2 + noise}}});
    program.run();
    program.run();
    ::testing::internal::GetCapturedStderr();
    results.push_back(p.read());
    EXPECT_TRUE(results.back().same_bits(results[0])) << level;
  }
}

TEST_F(Log, VerifiedRunsAreReportedAsOne) {
  const std::string text = log_of("1", 2, {.verify = true});
  EXPECT_EQ(lines_with(text, {"compiled in"}), 1) << text;
  EXPECT_EQ(lines_with(text, {"run "}), 2) << text;
}

TEST_F(Log, InvalidLevelsAreRefused) {
  for (const char* bad : {"5", "-1", "1x", "yes", " 1", "10"}) {
    setenv("TG_LOG", bad, 1);
    try {
      log_level();
      ADD_FAILURE() << bad << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.what(), "[log] TG_LOG is '" + std::string(bad) + "', expected 0 to 4");
    }
    Graph g;
    EXPECT_THROW(compile(g, {g.input("x", {2}) + 1}), Error) << bad;
  }
}

}  // namespace
}  // namespace tg
