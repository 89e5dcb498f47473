// Program::profile: the same run, with a time for every step.
#include <gtest/gtest.h>

#include "tilegrad.h"

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

}  // namespace
}  // namespace tg
