// Tests buffers, in-place sharing, and the offsets of the memory plan (core/compile/buffers.h,
// memory_plan.h).
#include "core/compile/buffers.h"

#include <gtest/gtest.h>

#include <tilegrad/tilegrad.h>
#include "core/compile/memory_plan.h"
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using tg::testing::expect_error;

// Runs the passes up to the buffers. The graph is not fused, so each op is a step.
struct Passes {
  std::vector<Assign> assign;
  Outputs outputs;
  std::vector<LoweredStep> steps;
  Joined joined;
  std::vector<bool> directly;
  Buffers buffers;

  Passes(Graph& g, const std::vector<Tensor>& fetch, std::vector<Assign> assignments = {})
      : assign(std::move(assignments)),
        outputs(outputs_of(g, fetch, assign)),
        steps(lower(g, outputs.all(), false)),
        joined(join_in_place(g, steps, outputs.all())),
        directly(written_directly(g, steps, outputs, assign)) {
    append_copies(g, steps, outputs, assign, directly);
    buffers = buffers_of(g, steps, joined, outputs, assign, directly);
  }
  Buffer& of(const Tensor& t) { return buffers.list.at(static_cast<std::size_t>(buffers.of[t.id()])); }
  bool same(const Tensor& a, const Tensor& b) const { return buffers.of[a.id()] == buffers.of[b.id()]; }
};

TEST(Buffers, LiveFromTheirFirstWriteToTheirLastRead) {
  Graph g;
  const Tensor x = g.input("x", {1000});
  const Tensor a = exp(x), b = a + 1, c = a * b, d = sum(c);
  Passes p(g, {d});
  EXPECT_EQ(p.of(x).kind, Buffer::input);
  EXPECT_EQ(p.of(a).kind, Buffer::arena);
  EXPECT_EQ(p.of(a).bytes, 4000u);
  EXPECT_EQ(p.of(a).first, 0);
  EXPECT_EQ(p.of(a).last, 2);
  EXPECT_EQ(p.of(b).first, 1);
  EXPECT_EQ(p.of(b).last, 2);
  EXPECT_EQ(p.of(d).kind, Buffer::result);
  EXPECT_EQ(p.of(d).last, 4);  // the number of steps, because the value is fetched after the run
}

// One kernel may compute index_assign and the step that reads the result.
TEST(Buffers, AssignedValuesLiveUntilTheResultIsRead) {
  Graph g;
  const Tensor rows = g.input("rows", {2}, i32), x = exp(g.input("x", {300, 4})),
               src = exp(g.input("s", {2, 4}));
  const Tensor held = index_assign(x, 0, rows, src), y = exp(held.view({4, 300})), z = exp(y);
  Passes p(g, {z});
  EXPECT_EQ(p.of(src).last, 3);
  EXPECT_EQ(p.of(x).last, 2);  // `held` may overwrite x
}

TEST(Buffers, BelongToRootsJoinedResultsAndParameters) {
  Graph g;
  Parameter w("w", Array(Shape{2, 3}, f32));
  const Tensor x = g.input("x", {2, 3}), one = g.constant(Array::of<float>({3}, {1, 2, 3}));
  const Tensor y = matmul(x, g.input("m", {3, 3})), z = matmul(x, g.input("n", {3, 3}));
  const Tensor joined = concat({y, z}, 1), next = x * 2 + one;
  Passes p(g, {exp(transpose(joined, 0, 1))}, {{w, next}});
  EXPECT_EQ(p.joined.size(), 2u);
  EXPECT_TRUE(p.same(y, joined));
  EXPECT_TRUE(p.same(z, joined));
  EXPECT_EQ(p.of(joined).bytes, 48u);
  EXPECT_EQ(p.of(one).kind, Buffer::constant);
  EXPECT_EQ(p.of(next).kind, Buffer::parameter);
  EXPECT_EQ(p.of(next).owner.key(), w.key());
}

TEST(Buffers, OnlySmallFetchedResultsAreStoredTogether) {
  Graph g;
  const Tensor x = g.input("x", {1000});
  const Tensor small = slice(x, 0, 0, 256) * 2, large = slice(x, 0, 0, 257) * 2,
               unfetched = sum(x, {0}, true);
  Passes p(g, {small, large, unfetched * 2});
  EXPECT_EQ(p.of(small).kind, Buffer::result);
  EXPECT_EQ(p.of(large).kind, Buffer::arena);
  EXPECT_EQ(p.of(unfetched).kind, Buffer::arena);
}

TEST(Sharing, AnOutputReusesTheMemoryOfADeadInput) {
  Graph g;
  const Tensor x = g.input("x", {1000});
  const Tensor a = exp(x), b = a + 1, c = b * a, d = sum(c);
  Passes p(g, {d});
  const int last = p.of(c).last;
  share_in_place(g, p.steps, p.joined, p.buffers);
  EXPECT_FALSE(p.same(a, x)) << "inputs keep their values";
  EXPECT_FALSE(p.same(b, a)) << "a is read later";
  EXPECT_TRUE(p.same(c, b));
  EXPECT_EQ(p.of(c).last, last);
}

TEST(Sharing, SkipsIncompatibleOperands) {
  Graph g;
  const Tensor x = g.input("x", {30, 30});
  const Tensor a = exp(x), b = transpose(a, 0, 1) + a;  // a is read in two orders
  const Tensor c = exp(x), d = greater(c, 0);           // a different dtype
  const Tensor e = exp(x), f = matmul(e, x);            // the op does not work in place
  const Tensor h = exp(x), i = slice(h, 0, 0, 15) * 2;  // a different size
  const Tensor j = exp(x), k = concat({j, j}, 0) * 2;
  Passes p(g, {b, cast(d, f32), f, i, k});
  share_in_place(g, p.steps, p.joined, p.buffers);
  EXPECT_FALSE(p.same(a, b));
  EXPECT_FALSE(p.same(c, d));
  EXPECT_FALSE(p.same(e, f));
  EXPECT_FALSE(p.same(h, i));
}

TEST(Sharing, OneOutputReusesOneInput) {
  Graph g;
  const Tensor x = g.input("x", {40});
  const Tensor a = exp(x), b = a * 2, c = a * 3;
  Passes p(g, {sum(b), sum(c)});
  share_in_place(g, p.steps, p.joined, p.buffers);
  EXPECT_FALSE(p.same(b, c));
}

TEST(ParametersOf, NamesEachOnceAndRefusesADifferentDevice) {
  Graph g;
  Parameter w("w", Array(Shape{4}, f32)), v("v", Array(Shape{4}, f32));
  const Tensor t = g.param(w);
  Passes p(g, {sum(t)}, {{w, t * 2}, {v, t}});
  EXPECT_EQ(parameters_of(p.buffers, p.steps, Device::cpu()).size(), 2u);
  expect_error<DeviceError>([&] { parameters_of(p.buffers, p.steps, Device::cuda()); },
                            {"[compile] parameter ", " lives on cpu, the program runs on cuda"});
}

TEST(MemoryPlan, OrdersInputsRandomStateResultsAndConstants) {
  Graph g;
  const Tensor c = g.constant(Array::of<float>({3}, {1, 2, 3}));
  const Tensor noise = uniform(g, {3});
  const Tensor a = g.input("a", {20}), b = g.input("b", {3});
  const Tensor y = b * c + noise, total = sum(a);
  Passes p(g, {y, total});
  const MemoryPlan plan = plan_buffers(g, p.buffers, 128, true);
  const auto offset = [&](const Tensor& t) {
    return plan.offset[static_cast<std::size_t>(p.buffers.of[t.id()])];
  };
  EXPECT_EQ(offset(a), 0u);
  EXPECT_EQ(offset(b), 128u);
  EXPECT_EQ(offset(g.rng()), 192u);
  EXPECT_EQ(plan.results_offset, 256u);
  EXPECT_EQ(std::min(offset(y), offset(total)), 256u + 128);
  EXPECT_EQ(std::max(offset(y), offset(total)), 256u + 192);
  EXPECT_EQ(offset(c), 256u + 256);
  EXPECT_EQ(plan.report.inputs, 256u);
  EXPECT_EQ(plan.report.results, 256u);
  EXPECT_EQ(plan.report.constants, 64u);
  EXPECT_EQ(plan.leaf_bytes(), 576u);
}

TEST(MemoryPlan, ReportsTheArenaByFirstStep) {
  Graph g;
  const Tensor x = g.input("x", {1000});
  Passes p(g, {sum(exp(x) * transpose(exp(x + 1).reshape({10, 100}), 0, 1).reshape({1000}))});
  const MemoryPlan plan = plan_buffers(g, p.buffers, 0, true), apart = plan_buffers(g, p.buffers, 0, false);
  const std::vector<ArenaBuffer> buffers = arena_buffers(p.buffers, plan);
  EXPECT_EQ(buffers.size(), plan.arena_order.size());
  EXPECT_TRUE(std::is_sorted(buffers.begin(), buffers.end(),
                             [](const ArenaBuffer& a, const ArenaBuffer& b) { return a.first < b.first; }));
  EXPECT_EQ(apart.report.arena, buffers.size() * 4032);
  EXPECT_LE(plan.report.alive, plan.report.arena);
  const std::vector<PlannedBuffer> all = planned_buffers(g, p.buffers, plan);
  EXPECT_EQ(all.size(), buffers.size() + 2);  // the input and the result
  EXPECT_EQ(all.front().kind, "arena");
  EXPECT_EQ(all.back().kind, "result");
  EXPECT_EQ(all.back().holds, "sum f32[]");
}

}  // namespace
