// Tests that RoPE ops move next to attention, so that a GPU can fuse them
// (backends/cuda/schedule/schedule_ropes.cpp).
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <tilegrad/tilegrad.h>
#include "backends/cuda/schedule/scheduler.h"

namespace {

using namespace tg;
using namespace tg::cuda;

std::vector<LoweredStep> lowered(const Graph& g, const std::vector<Tensor>& outputs) {
  std::vector<ValueId> ids;
  for (const Tensor& t : outputs) ids.push_back(t.id());
  return lower(g, ids, true);
}
std::vector<std::string> names(const std::vector<LoweredStep>& steps) {
  std::vector<std::string> all;
  for (const LoweredStep& s : steps) all.push_back(s.op->name);
  return all;
}
// Returns whether every value is computed before it is read.
bool is_in_order(const Graph& g, const std::vector<LoweredStep>& steps) {
  std::vector<bool> made(g.values().size(), false);
  for (const LoweredStep& s : steps)
    for (ValueId v : s.out) made[v] = true;
  std::vector<bool> pending = made;
  for (const LoweredStep& s : steps) {
    if (std::ranges::any_of(s.in, [&](ValueId v) { return pending[g.values()[v].root]; })) return false;
    for (ValueId v : s.out) pending[v] = false;
  }
  return true;
}

// Records attention in the same order as a layer: a projection, its RoPE, and then the next projection.
struct Layer {
  Graph g;
  Tensor x, w, q, k, v, rq, rk, o;
  explicit Layer(AttentionOptions options = {.causal = true}) {
    x = g.input("x", {2, 8, 16}, f32), w = g.input("w", {16, 16}, f32);
    const auto heads = [&] { return transpose(matmul(x, w).view({2, 8, 2, 8}), 1, 2); };
    q = heads(), rq = rope(q), k = heads(), rk = rope(k), v = heads();
    o = flash_attn(rq, rk, v, options).o;
  }
};

TEST(ScheduleRopes, AreNextToAttention) {
  Layer l;
  const std::vector<Tensor> z = gradients((l.o * l.o).sum(), {l.w});
  std::vector<LoweredStep> steps = lowered(l.g, {z[0]});
  const std::vector<std::string> before = names(steps);
  schedule_ropes(l.g, steps);
  std::vector<std::string> after = names(steps);
  EXPECT_TRUE(is_in_order(l.g, steps));
  const auto forward = std::ranges::find(after, "flash_attn"),
             backward = std::ranges::find(after, "flash_attn_backward");
  ASSERT_TRUE(forward - after.begin() >= 2 && after.end() - backward > 2);
  EXPECT_EQ(forward[-1] + " " + forward[-2], "rope rope");
  EXPECT_EQ(backward[1] + " " + backward[2], "rope rope");
  EXPECT_EQ(std::vector(after.begin(), after.begin() + 3),
            (std::vector<std::string>{"matmul", "matmul", "matmul"}));
  std::vector<std::string> sorted = before;
  std::ranges::sort(sorted), std::ranges::sort(after);
  EXPECT_EQ(after, sorted);
}

TEST(ScheduleRopes, TensorsWithEarlierReadersStay) {
  Layer l;
  const Tensor early = softmax(l.rq, -1), o = flash_attn(l.rq, l.rk, l.v, {.scale = 0.1}).o;
  std::vector<LoweredStep> steps = lowered(l.g, {early, o});
  schedule_ropes(l.g, steps);
  EXPECT_TRUE(is_in_order(l.g, steps));
  const std::vector<std::string> after = names(steps);
  const auto softmax_at = std::ranges::find(after, "softmax"), at = std::ranges::find(after, "flash_attn");
  EXPECT_EQ(std::count(after.begin(), softmax_at, "rope"), 1);
  EXPECT_EQ(at[-1], "rope");  // the RoPE of keys
  EXPECT_LT(softmax_at, at);
}

// A decoding step on a GPU. One kernel adds rows to a cache and reads the cache.
TEST(ScheduleRopes, RowsAddedToACacheStayNextToIt) {
  Layer l;
  Graph& g = l.g;
  const Tensor held = g.input("held", {2, 2, 8, 8}, f32), at = g.input("at", {8}, i32);
  const Tensor k = index_assign(held, 2, at, l.rk), lengths = g.input("lengths", {2}, i32);
  const Tensor o = flash_attn(l.rq, k, held, {.causal = true, .kv_lengths = lengths}).o;
  std::vector<LoweredStep> steps = lowered(g, {o});
  const std::vector<std::string> before = names(steps);
  ASSERT_EQ(before[before.size() - 2] + " " + before.back(), "index_assign flash_attn");
  schedule_ropes(g, steps);
  EXPECT_EQ(names(steps), before);
}

// The positions are computed after the gradient. A program that fetches positions has this order.
TEST(ScheduleRopes, WaitsForPositions) {
  Layer l;
  const Tensor z = gradients((l.o * l.o).sum(), {l.rq})[0];
  const Tensor positions = cast(argmax(z, {-1}), i64);
  const Tensor rotated = rope(z, positions);
  std::vector<LoweredStep> steps = lowered(l.g, {rotated});
  schedule_ropes(l.g, steps);
  EXPECT_TRUE(is_in_order(l.g, steps));
}

}  // namespace
