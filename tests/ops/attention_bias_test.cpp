// Tests that attention uses a boolean bias as a mask, and refuses integer biases and sinks.
#include <tilegrad/core/base/random.h>
#include <tilegrad/tilegrad.h>

#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "tests/support/op_testing.h"

namespace tg {
namespace {

using Attend =
    std::function<AttentionResult(const Tensor&, const Tensor&, const Tensor&, const AttentionOptions&)>;

AttentionResult fused(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  return flash_attn(q, k, v, o);
}
AttentionResult unfused(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  return standard_attn(q, k, v, o);
}

TEST(BooleanBias, IsAMask) {
  for (const Attend& attend : {Attend(fused), Attend(unfused)}) {
    Graph g;
    const Tensor q = g.constant(normal_array({1, 2, 3, 4}, f32, 0, 1, 1)),
                 k = g.constant(normal_array({1, 2, 5, 4}, f32, 0, 1, 2));
    const Tensor number = arange(g, 0, 15, 1, f32), seen = less(view(number, {3, 5}), 12);
    const Tensor masked = attend(q, k, k, {.bias = seen}).o,
                 added = attend(q, k, k, {.bias = where(seen, full(g, {3, 5}, 0, f32), -INFINITY)}).o,
                 none = attend(q, k, k, {.bias = less(view(number, {3, 5}), 5)}).o;
    EXPECT_EQ(eval(masked).values<float>(), eval(added).values<float>());
    EXPECT_NE(eval(masked).values<float>(), eval(attend(q, k, k, {}).o).values<float>());
    EXPECT_EQ(eval(slice(none, 2, 1, 3)).values<float>(),
              std::vector<float>(16, 0));  // these rows see no key
    for (float z : eval(gradients(sum(none), {q})[0]).values<float>()) EXPECT_TRUE(std::isfinite(z));
  }
}

TEST(BooleanBias, IntegersAreRefused) {
  Graph g;
  const Tensor q = g.input("q", {1, 2, 3, 4}), k = g.input("k", {1, 2, 5, 4});
  for (const DType t : {u8, i32, i64})
    for (const Attend& attend : {Attend(fused), Attend(unfused)}) {
      EXPECT_THROW((void)attend(q, k, k, {.bias = g.input("b", {3, 5}, t)}), DTypeError);
      EXPECT_THROW((void)attend(q, k, k, {.sink = g.input("s", {2}, t)}), DTypeError);
    }
  const Tensor pool = g.input("p", {4, 16, 2, 4});
  for (const DType t : {boolean, u8, i32, i64})
    EXPECT_THROW((void)paged_attn(q, pool, pool, g.input("t", {1, 2}, i32), g.input("n", {1}, i32),
                                  {.sink = g.input("s", {2}, t)}),
                 DTypeError);
  EXPECT_THROW((void)flash_attn(q, k, k, {.sink = g.input("s", {2}, boolean)}), DTypeError);
}

}  // namespace
}  // namespace tg
