// Tests that adjacent elementwise steps are merged into one step with several results
// (core/compile/merge.cpp).
#include <gtest/gtest.h>

#include <functional>

#include "core/compile/lower.h"
#include "tests/support/op_testing.h"
#include "tests/support/random_fused.h"

namespace {

using namespace tg;
using namespace tg::testing;

const CompileOptions unfused{.fuse = false};

const FusedAttrs& chain(const Step& s) {
  return s.attrs.as<FusedAttrs>();
}

struct Merging : ::testing::Test {
  Graph g;
  Tensor a = g.input("a", {6, 50}), b = g.input("b", {6, 50}), z = g.input("z", {6, 50});
  std::vector<Array> arrays;
  std::vector<Feed> feeds() {
    arrays.clear();
    for (const Tensor& t : {a, b, z}) {
      Array x(t.shape(), f32);
      for (std::int64_t i = 0; i < x.numel(); ++i)
        x.set(i, 1.5 + 0.25 * static_cast<double>((i * i + 3 * i * t.id()) % 7));
      arrays.push_back(x);
    }
    return {{a, arrays[0]}, {b, arrays[1]}, {z, arrays[2]}};
  }
  // Merged steps must give the same results as separate steps, in planned memory and on any number of
  // threads.
  void expect_same(const std::vector<Tensor>& ts) {
    const std::vector<Array> got = run_checked(ts, feeds()), expected = eval(ts, feeds(), unfused);
    for (std::size_t i = 0; i < ts.size(); ++i) EXPECT_TRUE(got[i].same_bits(expected[i])) << i;
  }
};

TEST_F(Merging, TheGradientsOfAnOpAreOneStepWithoutOtherResults) {
  const std::pair<const char*, Tensor> ops[] = {{"maximum", maximum(a, b)},
                                                {"minimum", minimum(a, b)},
                                                {"mul", a * b},
                                                {"div", a / b},
                                                {"pow", tg::pow(a, b)},
                                                {"sub", a - b},
                                                {"where", where(greater(z, 2), a, b)}};
  for (const auto& [name, y] : ops) {
    const std::vector<Tensor> zs = gradients(y, {a, b}, z);
    const Program p = compile(g, zs);
    const bool copies = std::string(name) == "sub";  // z is a copy of its input
    ASSERT_EQ(p.steps().size(), 1u) << name << "\n" << p.text();
    EXPECT_EQ(p.steps()[0].out.size(), copies ? 1u : 2u) << name;
    EXPECT_EQ(p.buffers().size(), p.steps()[0].out.size()) << name;
    expect_same(zs);
  }
}

TEST_F(Merging, AMaskAndItsSelectionAreOneStep) {
  const Tensor y = gradients(relu(a - 2), {a}, z)[0], c = clamp(a, 1.75, 2.5);
  for (const Tensor& t : {y, c}) {
    const Program p = compile(g, {t});
    ASSERT_EQ(p.steps().size(), 1u) << p.text();
    EXPECT_EQ(p.steps()[0].out.size(), 1u);
    expect_same({t});
  }
}

TEST_F(Merging, AnOutputOrAValueReadLaterIsAResult) {
  const Tensor s = sigmoid(a), y = s * (1 - s);
  const Program fetched = compile(g, {y, s});
  ASSERT_EQ(fetched.steps().size(), 1u);
  EXPECT_EQ(chain(fetched.steps()[0]).text(), "sigmoid(in0) → sub(1, %0) → mul(%0, %1); results %0, %2");
  expect_same({y, s});
  const Tensor later = softmax(s, -1) + softmax(y, -1);
  const Program read = compile(g, {later});
  EXPECT_EQ(read.steps().size(), 4u) << read.text();
  EXPECT_EQ(read.steps()[0].out.size(), 2u);
  expect_same({later});
}

TEST_F(Merging, IndependentStepsStaySeparate) {
  const Tensor first = a * 2, between = softmax(a, -1), last = a * 3;
  EXPECT_EQ(compile(g, {first, between, last}).steps().size(), 3u);  // softmax is not pointwise
  const Tensor x = b * 2, reader = transpose(x, 0, 1) + 1, y = b * 3;
  EXPECT_EQ(compile(g, {x, reader, y}).steps().size(),
            3u);  // another step between them reads x in a different order
  const Tensor m = z * 2, other = exp(a), n = z * 3;
  EXPECT_EQ(compile(g, {m, other, n}).steps().size(), 2u);  // exp(a) does not prevent the merge
  const Tensor row = g.input("row", {50});
  EXPECT_EQ(compile(g, {a * row, b * row}).steps().size(), 2u);  // the products share only a row
  EXPECT_EQ(compile(g, {a * 2, cast(a, f64) * 2}).steps().size(),
            2u);  // the second step has a different compute type
  expect_same({first, between, last, x, reader, y, m, other, n});
}

TEST_F(Merging, HasLimits) {
  std::vector<Tensor> many;
  for (int i = 0; i < 6; ++i) many.push_back(a * i);
  const Program outputs = compile(g, many);
  ASSERT_EQ(outputs.steps().size(), 2u);
  Tensor x = a, y = b;
  std::vector<Tensor> all;
  for (int i = 0; i < 40; ++i) {
    x = x * b + z, y = y * a + x;
    if (i % 4 == 3) all.insert(all.end(), {x, y});
  }
  const Program code = compile(g, all);
  std::size_t several = 0;
  for (const Step& s : code.steps()) {
    EXPECT_LE(s.out.size(), static_cast<std::size_t>(FusedAttrs::max_outputs));
    EXPECT_LE(s.in.size(), static_cast<std::size_t>(FusedAttrs::max_inputs));
    EXPECT_LE(chain(s).code.size(), static_cast<std::size_t>(FusedAttrs::max_fused));
    several += s.out.size() > 1;
  }
  EXPECT_GT(several, 0u);
  for (Tensor& t : all) t = t * 0;  // otherwise the numbers overflow
  expect_same(many);
}

TEST_F(Merging, ResultsHaveTheLayoutOfTheirOperands) {
  const Tensor u = transpose(a, 0, 1), v = transpose(b, 0, 1);
  const std::vector<Tensor> both{u * v, u / v};
  EXPECT_FALSE(both[0].layout().is_contiguous());
  EXPECT_EQ(compile(g, both).steps().size(), 1u);
  expect_same(both);
  // If one operand is transposed relative to the other, each step keeps its own order.
  const Tensor w = g.input("w", {50, 6});
  EXPECT_EQ(compile(g, {u + w, w * u}).steps().size(), 2u);
}

// The last step that reads softmax's result computes two values. One of them reuses the memory of softmax's
// result.
TEST_F(Merging, AResultReusesAnInputsMemoryAfterAllReads) {
  const Tensor s = softmax(a, -1), x = exp(s), y = s * b - z;
  const Program p = compile(g, {x, y, s + x});
  EXPECT_EQ(p.steps().size(), 2u);
  EXPECT_EQ(compile(g, {softmax(x, -1), softmax(y, -1)}).memory().arena,
            2 * p.steps()[0].out[0].layout.numel() * 4u + 32);
  for (const std::vector<Tensor>& ts :
       {std::vector{x, y}, {y, x}, {x, s + x, y}, {softmax(x, -1), softmax(y, -1)}})
    expect_same(ts);
  // If the step also reads the result in a different order, it must not overwrite the result.
  const Tensor q = softmax(matmul(a, transpose(b, 0, 1)), -1);
  expect_same({q * transpose(q, 0, 1), q + 1});
}

TEST_F(Merging, AParameterIsAssignedByAStepThatReadsItTwice) {
  for (const bool fuse : {true, false}) {
    Parameter p("p", Array::of<float>({4}, {1, 2, 3, 4})), m("m", Array::of<float>({4}, {0, 0, 0, 1}));
    Graph other;
    const Tensor x = other.param(p), v = other.param(m), next = v * 0.5 + x, step = x - next;
    Program program =
        compile(other, {step * x}, {.assign = {{m, next}, {p, step}}, .fuse = fuse, .verify = true});
    program.run(), program.run();
    EXPECT_EQ(m.read().values<float>(), (std::vector<float>{0.5, 1, 1.5, 1.75})) << fuse;
    EXPECT_EQ(p.read().values<float>(), (std::vector<float>{-0.5, -1, -1.5, -2.25})) << fuse;
  }
}

// Every step that reads a stored value must use the rounded value.
TEST_F(Merging, AStored16BitValueIsRoundedForItsReadersInTheStep) {
  const Tensor x = cast(a, bf16), y = x * 1.1, rest = cast(y, f32) - cast(x, f32) * 1.1;
  const Program p = compile(g, {y, rest});
  EXPECT_EQ(p.steps().size(), 1u) << p.text();
  expect_same({x, y, rest});
  const auto got = eval({y, rest}, feeds());
  const Array ya = got[0].to(f32);
  double largest = 0;
  for (std::int64_t i = 0; i < got[1].numel(); ++i) largest = std::max(largest, std::abs(got[1].at(i)));
  EXPECT_GT(largest, 1e-4);  // error of the rounding
}

TEST(RandomFused, FusedMatchesSingleSteps) {
  std::size_t several = 0;
  for (unsigned seed = 0; seed < 160; ++seed) {
    RandomFused r(seed);
    EXPECT_EQ(r.difference({.threads = 1, .verify = true}, unfused), "") << "seed " << seed;
    const Program p = compile(r.g, r.outputs);
    for (const Step& s : p.steps()) several += s.out.size() > 1;
  }
  EXPECT_GT(several, 160u);
}

}  // namespace
