// Tests Program::profile and the report of its results. Program::profile measures the time of every step of a
// run.
#include <gtest/gtest.h>

#include <tilegrad/ops/ceilings.h>
#include <tilegrad/tilegrad.h>

namespace tg {
namespace {

TEST(Profile, GivesOneTimePerStepAndTheSameResult) {
  for (int threads : {1, 2}) {
    Graph g;
    const Tensor x = g.input("x", {200, 300});
    const Tensor y = sum(exp(x), {1}), z = sum(y * 2);
    Parameter p("p", Array({}, f32));
    Program program = compile(g, {z}, {.assign = {{p, z}}, .threads = threads, .fuse = false});
    program.run({{x, std::vector<float>(60000, 0.5f)}});
    const float expected = program.item<float>(z);
    p.write(Array({}, f32));
    const std::vector<double> seconds = program.profile();
    ASSERT_EQ(seconds.size(), program.steps().size());
    for (double s : seconds) EXPECT_GE(s, 0);
    EXPECT_EQ(program.item<float>(z), expected);
    EXPECT_EQ(p.read().item<float>(), expected);
  }
}

TEST(Profile, ReportsWorkAndTimeByOpAsSharesOfTheCeilings) {
  Graph g;
  const Tensor a = g.input("a", {256, 128}), b = g.input("b", {128, 64}), row = g.input("row", {64});
  const Tensor c = matmul(matmul(a, b), matmul(transpose(b, 0, 1), b));
  const Tensor y = exp(c + expand(row, {256, 64})), z = softmax(y);
  Program program = compile(g, {z}, {.threads = 1});
  program.run({{a, Array(a.shape(), f32)}, {b, Array(b.shape(), f32)}, {row, Array(row.shape(), f32)}});
  int started = 0;
  const Profile p = profile(program, measure_ceilings(program), 2, [&] {
    ++started;
    program.run();
    return program.fetch_later({});
  });
  EXPECT_EQ(started, 3 + 2);
  EXPECT_GT(p.ceilings.copy, 1e8);
  ASSERT_EQ(p.ceilings.product.size(), 1u);
  EXPECT_EQ(p.ceilings.product[0].first, f32);
  EXPECT_GT(p.ceilings.product[0].second, 1e8);
  EXPECT_GE(p.run, p.host);
  ASSERT_EQ(p.steps.size(), program.steps().size());

  const std::vector<StepTime> kinds = by_op(program, p);
  double all = 0, sum = 0;
  for (const StepTime& t : p.steps) all += t.seconds;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    sum += kinds[i].seconds;
    if (i > 0) {
      EXPECT_LE(kinds[i].seconds, kinds[i - 1].seconds);
    }
    const StepTime& t = kinds[i];
    if (t.name == "matmul") {
      EXPECT_EQ(t.count, 3);
      EXPECT_EQ(t.flops, 2.0 * 64 * (256 * 128 + 64 * 128 + 256 * 64));
      EXPECT_EQ(t.bytes, 4.0 * (256 * 128 + 3 * 128 * 64 + 256 * 64 + 2 * 64 * 64 + 2 * 256 * 64));
    }
    if (t.name == "fused to exp") {
      EXPECT_EQ(t.bytes, 4.0 * (2 * 256 * 64 + 64));  // the row is read once
    }
    EXPECT_GT(t.least, 0) << t.name;
  }
  EXPECT_NEAR(sum, all, 1e-12);
  const std::string text = profile_text(program, p, 1);
  for (const char* part : {"one run: ", "copy", "matmul f32", "fused to exp", "softmax", "ceiling  step"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;

  // The report lists the kernels of steps even if a program was only planned.
  for (const Program& each : {program, compile(g, {z}, {.threads = 1, .plan_only = true})}) {
    const std::size_t last = each.steps().size() - 1;
    EXPECT_EQ(each.steps()[last].op->name, "softmax");
    EXPECT_NE(each.choice(last).find("by one thread"), std::string::npos) << each.choice(last);
    EXPECT_THROW(each.choice(last + 1), Error);
  }
  EXPECT_NE(profile_text(program, p).find("softmax: " + program.choice(program.steps().size() - 1) + "\n"),
            std::string::npos);

  // A ceiling is ignored if it is far below the measured speed of the steps.
  Profile busy = p;
  for (StepTime& t : busy.steps) t.least = 1.3 * t.seconds;
  const char* hint = "A share above 1.2:";
  EXPECT_NE(profile_text(program, busy, 1).find(hint), std::string::npos);
  for (StepTime& t : busy.steps) t.least = t.seconds;
  EXPECT_EQ(profile_text(program, busy, 1).find(hint), std::string::npos);
}

}  // namespace
}  // namespace tg
