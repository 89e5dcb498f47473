// Tests ops along an axis (top_k, cumsum and flip) and ops that count (arange, tril and triu).
#include <cmath>
#include <limits>
#include <numeric>

#include <tilegrad/core/base/host_view.h>
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

// Returns the lines of a tensor along an axis. Each line is a list of element positions in row-major order.
std::vector<std::vector<std::size_t>> lines(const Shape& shape, int axis) {
  std::int64_t outer = 1, inner = 1;
  for (int a = 0; a < axis; ++a) outer *= shape[a];
  for (int a = axis + 1; a < shape.size(); ++a) inner *= shape[a];
  std::vector<std::vector<std::size_t>> out;
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t i = 0; i < inner; ++i) {
      out.emplace_back();
      for (std::int64_t t = 0; t < shape[axis]; ++t)
        out.back().push_back(static_cast<std::size_t>((o * shape[axis] + t) * inner + i));
    }
  return out;
}

TEST(TopK, SortsTheLargestAndKeepsTheOrderOfEquals) {
  const Shape shape{3, 9, 4};
  for (DType t : {f64, f32, bf16, f16, i64, i32, u8})
    for (int axis : {0, 1, 2})
      for (View kind : all_views)
        for (std::int64_t k : {std::int64_t{1}, std::int64_t{3}, shape[axis]}) {
          Graph g;
          // There are few distinct values, so there are many ties.
          const Given x = given(g, shape, t == f64 ? f64 : i64, kind, 1, is_float(t) ? -3 : 0, 6);
          const Tensor v = cast(x.tensor, t);
          Shape small = shape;
          small[axis] = k;
          Vector values(static_cast<std::size_t>(numel(small))), places = values;
          const auto from = lines(shape, axis), to = lines(small, axis);
          for (std::size_t l = 0; l < from.size(); ++l) {
            std::vector<std::size_t> order(from[l].size());
            std::iota(order.begin(), order.end(), 0);
            std::stable_sort(order.begin(), order.end(),
                             [&](auto a, auto b) { return x.values[from[l][a]] > x.values[from[l][b]]; });
            for (std::size_t i = 0; i < to[l].size(); ++i) {
              values[to[l][i]] = x.values[from[l][order[i]]];
              places[to[l][i]] = static_cast<double>(order[i]);
            }
          }
          const auto best = top_k(v, k, axis);
          EXPECT_EQ(best[1].dtype(), i64);
          expect_values(best[0], {x}, values);
          expect_values(best[1], {x}, places);
        }
}

TEST(TopK, LongLinesAgreeWithSorting) {
  Graph g;
  const Given x = given(g, {2, 5000}, f32);
  const auto best = top_k(x.tensor, 700);
  Vector expected;
  for (int l = 0; l < 2; ++l) {
    Vector line(x.values.begin() + l * 5000, x.values.begin() + (l + 1) * 5000);
    std::sort(line.begin(), line.end(), std::greater<>());
    expected.insert(expected.end(), line.begin(), line.begin() + 700);
  }
  expect_values(best[0], {x}, expected);
}

TEST(TopK, TreatsNaNAsTheLargest) {
  Graph g;
  const Tensor x = g.input("x", {5}, f32);
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const auto best = top_k(x, 4);
  const Array places = eval(best[1], {{x, std::vector<float>{1, nan, inf, -inf, nan}}});
  EXPECT_EQ(places.values<std::int64_t>(), (std::vector<std::int64_t>{1, 4, 2, 0}));
}

TEST(TopK, GradientFlowsToTheSelectedElements) {
  for (View kind : {View::contiguous, View::transposed, View::sliced})
    for (int axis : {0, 1}) {
      Graph g;
      const Given x = given(g, {4, 5}, f64, kind, 3);
      const Tensor best = top_k(x.tensor, 2, axis)[0];
      expect_gradients(weighted_sum(best * best), {x});
    }
}

TEST(TopK, RefusesKAboveTheLength) {
  Graph g;
  const Tensor x = g.input("x", {2, 3});
  expect_error<ShapeError>([&] { top_k(x, 4); }, {"[top_k]", "k is 4, expected 0 to 3", "axis_ops_test.cpp"});
  EXPECT_EQ(eval(top_k(x, 0)[0], {{x, std::vector<float>(6)}}).numel(), 0);
}

TEST(Cumsum, AddsUpAlongAnyAxisInBothDirections) {
  const Shape shape{3, 7, 300};  // the last axis is longer than a block
  for (DType t : {f64, f32, bf16, f16, i64, i32})
    for (int axis : {0, 1, 2})
      for (View kind : all_views)
        for (bool reverse : {false, true}) {
          if (kind != View::contiguous && axis == 2 && t != f64) continue;
          Graph g;
          const Given x = given(g, shape, t, kind, 1, is_float(t) ? 0 : -8, is_float(t) ? 1 : 8);
          Vector expected(x.values.size());
          double length = 0;
          for (const auto& line : lines(shape, axis)) {
            double sum = 0;
            length = static_cast<double>(line.size());
            for (std::size_t i = 0; i < line.size(); ++i) {
              const std::size_t at = line[reverse ? line.size() - 1 - i : i];
              expected[at] = sum += x.values[at];
            }
          }
          // There are n additions. No partial sum exceeds the last sum.
          const double tolerance = is_float(t) ? rounding(t) + length * 2 * rounding(compute_type(t)) : 0;
          expect_values(cumsum(x.tensor, axis, reverse), {x}, expected,
                        tolerance * (is_float(t) ? length : 1));
        }
}

// In f64, sums of few 16-bit numbers are exact. This includes subnormal numbers.
TEST(Cumsum, RoundsEachSumOf16BitTypesOnce) {
  constexpr std::int64_t rows = 21, columns = 37;
  for (const DType t : {bf16, f16})
    for (const double scale : {1., t == bf16 ? 1e-38 : 1e-4}) {
      Vector values(rows * columns), sums(values.size());
      Array given({rows, columns}, t);
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = stored_number(t, scale * std::sin(static_cast<double>(i)));
        given.set(static_cast<std::int64_t>(i), values[i]);
      }
      for (int axis : {0, 1}) {
        for (const auto& line : lines({rows, columns}, axis)) {
          double sum = 0;
          for (const std::size_t at : line) sums[at] = sum += values[at];
        }
        Graph g;
        const Tensor x = g.input("x", {rows, columns}, t);
        const Array got = eval(cumsum(x, axis), {{x, given}});
        for (std::size_t i = 0; i < sums.size(); ++i)
          ASSERT_EQ(got.at(static_cast<std::int64_t>(i)), stored_number(t, sums[i]))
              << name_of(t) << " " << i;
      }
    }
}

TEST(Cumsum, GradientRunsInTheOppositeDirection) {
  for (bool reverse : {false, true})
    for (View kind : all_views) {
      Graph g;
      const Given x = given(g, {3, 4, 2}, f64, kind, 1);
      const Tensor y = cumsum(x.tensor, 1, reverse);
      expect_gradients(weighted_sum(y * y), {x});
    }
}

TEST(Arange, CountsUpToButNotIncludingTheEnd) {
  Graph g;
  expect_values(arange(g, 0, 5), {}, {0, 1, 2, 3, 4});
  expect_values(arange(g, 5, -2, -3), {}, {5, 2, -1});
  expect_values(arange(g, 0, 1, 0.25, f64), {}, {0, 0.25, 0.5, 0.75});
  expect_values(arange(g, 1, 1), {}, {});
  const Array half = eval(arange(g, 0, 600, 1, bf16));
  for (int i = 0; i < 600; ++i)
    ASSERT_EQ(half.at(i), static_cast<double>(static_cast<float>(bfloat16(static_cast<float>(i)))));
  expect_error<ShapeError>([&] { arange(g, 0, 5, -1); }, {"[arange]", "lead from", "axis_ops_test.cpp"});
  expect_error<ShapeError>([&] { arange(g, 0, 5, 0); }, {"[arange]"});
  expect_error<DTypeError>([&] { arange(g, 0.5, 5); }, {"[arange]", "whole numbers"});
}

TEST(Triangles, KeepOneSideOfTheDiagonal) {
  for (DType t : {f64, f32, f16, i32, boolean})
    for (View kind : all_views)
      for (std::int64_t k : {-7, -1, 0, 2, 9}) {
        Graph g;
        const Given x = given(g, {2, 4, 5}, t == boolean ? u8 : t, kind, 1, 0, t == boolean ? 2 : 9);
        const Tensor v = cast(x.tensor, t);
        Vector lower = x.values, upper = x.values;
        for (std::int64_t b = 0; b < 2; ++b)
          for (std::int64_t i = 0; i < 4; ++i)
            for (std::int64_t j = 0; j < 5; ++j)
              (j - i > k ? lower : upper)[static_cast<std::size_t>((b * 4 + i) * 5 + j)] *=
                  j - i == k ? 1 : 0;
        expect_values(tril(v, k), {x}, lower);
        expect_values(triu(v, k), {x}, upper);
      }
}

TEST(Triangles, HaveTriangularGradientsInOnePass) {
  Graph g;
  const Given x = given(g, {3, 4}, f64, View::transposed, 1);
  expect_gradients(weighted_sum(tril(x.tensor, 1) * triu(x.tensor, -1)), {x});
  const Program program = compile(g, {tril(x.tensor)});
  EXPECT_EQ(program.steps().size(), 3u) << program.text();  // two counting steps and one fused step
  expect_error<ShapeError>([&] { tril(g.input("v", {3})); }, {"[tril]", "two dimensions", "f32 [3]"});
}

TEST(Flip, ReversesAnAxis) {
  Graph g;
  const Given x = given(g, {2, 3}, f64, View::sliced, 1);
  const Vector& v = x.values;
  expect_values(flip(x.tensor, -1), {x}, {v[2], v[1], v[0], v[5], v[4], v[3]});
  expect_gradients(weighted_sum(flip(x.tensor, 0)), {x});
}

TEST(AxisOps, AcceptEmptyTensors) {
  Graph g;
  const Given x = given(g, {0, 3}, f32), y = given(g, {2, 0}, f32, View::contiguous, 2);
  expect_values(cumsum(x.tensor, 0), {x}, {});
  expect_values(cumsum(y.tensor, 1), {y}, {});
  expect_values(top_k(x.tensor, 2)[0], {x}, {});
  expect_values(tril(x.tensor), {x}, {});
  expect_values(flip(y.tensor, 1), {y}, {});
}

}  // namespace
