// Tests split, concat, stack and pad, and slices that are assigned and read. Values are compared with plain
// loops on every kind of view. Gradients are compared with difference quotients.
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

constexpr DType moved_types[] = {f64, f32, bf16, f16, i64, i32, u8};

TEST(Slice, GradientFillsTheRestWithZeros) {
  for (View kind : all_views) {
    Graph g;
    const Given x = given(g, {4, 5, 3}, f64, kind, 1);
    expect_gradients(weighted_sum(slice(slice(x.tensor, 1, -4, 5, 2), 0, 1, 3)), {x});
  }
}

TEST(Slice, GradientsOfOverlappingSlicesAdd) {
  Graph g;
  const Tensor x = g.input("x", {5}, f64);
  const Tensor z = gradients(sum(slice(x, 0, 0, 4)) + sum(slice(x, 0, 2, 5)) * 10, {x})[0];
  EXPECT_EQ(eval(z, {{x, Vector(5)}}, {.verify = true}).values<double>(), (Vector{1, 1, 11, 11, 10}));
}

TEST(Slice, AnEmptySliceHasAZeroGradient) {
  Graph g;
  const Tensor x = g.input("x", {3}, f64);
  const Tensor z = gradients(sum(slice(x, 0, 2, 2)), {x})[0];
  EXPECT_EQ(eval(z, {{x, Vector(3)}}, {.verify = true}).values<double>(), Vector(3, 0));
}

TEST(SliceAssign, OverwritesTheRegionOnEveryView) {
  for (DType t : moved_types)
    for (View kx : all_views)
      for (View ks : all_views) {
        Graph g;
        const Given x = given(g, {3, 7, 2}, t, kx, 2, 0, 100), s = given(g, {3, 3, 2}, t, ks, 3, 0, 100);
        Vector expected = x.values;
        const Vector part = s.values;
        for (int i = 0; i < 3; ++i)
          for (int j = 0; j < 3; ++j)
            for (int k = 0; k < 2; ++k) expected[(i * 7 + 1 + 2 * j) * 2 + k] = part[(i * 3 + j) * 2 + k];
        expect_values(slice_assign(x.tensor, s.tensor, 1, 1, 2), {x, s}, expected);
      }
}

TEST(SliceAssign, HasGradientsOfBothOperands) {
  for (View kx : all_views)
    for (View ks : all_views) {
      Graph g;
      const Given x = given(g, {3, 6}, f64, kx, 4), s = given(g, {3, 2}, f64, ks, 5);
      const Tensor y = slice_assign(x.tensor, s.tensor, -1, -3, 2);
      expect_gradients(weighted_sum(y * y), {x, s});
    }
}

TEST(SliceAssign, ReadsItsStartFromATensor) {
  for (DType index : {i64, i32}) {
    Graph g;
    const Given x = given(g, {2, 5, 3}, f64, View::transposed, 6);
    const Given s = given(g, {2, 2, 3}, f64, View::sliced, 7);
    const Given at = given(g, {}, index, View::contiguous, 8, 3, 4);
    Vector expected = x.values;
    const Vector part = s.values;
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < 2; ++j)
        for (int k = 0; k < 3; ++k) expected[(i * 5 + 3 + j) * 3 + k] = part[(i * 2 + j) * 3 + k];
    const Tensor y = slice_assign(x.tensor, s.tensor, 1, at.tensor);
    expect_values(y, {x, s, at}, expected);
    expect_gradients(weighted_sum(y * y), {x, s, at});
  }
}

TEST(SliceAssign, FillsACacheInPlaceOneRowPerRun) {
  Graph g;
  const Parameter cache("cache", Array({2, 4, 3}, f32));
  const Tensor row = g.input("row", {2, 1, 3}, f32), at = g.input("at", {}, i64);
  const Tensor next = slice_assign(g.param(cache), row, 1, at);
  Program program = compile(g, {}, {.assign = {{cache, next}}, .threads = 2});
  EXPECT_EQ(program.memory().arena, 0u);  // the cache is written in place
  for (std::int64_t t = 0; t < 4; ++t) {
    const auto v = static_cast<float>(t + 1);
    program.run({{row, std::vector<float>(6, v)}, {at, std::vector<std::int64_t>{t}}});
  }
  const Array after = cache.read();
  for (std::int64_t i = 0; i < 24; ++i) EXPECT_EQ(after.at(i), static_cast<double>(i / 3 % 4 + 1));
}

TEST(SliceAssign, RefusesAStartOutOfRangeAndKeepsTheParameter) {
  for (int threads : {1, 3}) {
    Graph g;
    const Parameter cache("cache", Array::of<float>({4}, {1, 2, 3, 4}));
    const Tensor row = g.input("row", {2}, f32), at = g.input("at", {1}, i32);
    Program program =
        compile(g, {}, {.assign = {{cache, slice_assign(g.param(cache), row, 0, at)}}, .threads = threads});
    for (std::int32_t bad : {3, -1, 1 << 30})
      expect_error<Error>(
          [&] {
            program.run({{row, std::vector<float>{9, 9}}, {at, std::vector<std::int32_t>{bad}}});
          },
          {"[slice_assign] index", std::to_string(bad), "expected 0 to 2", "shape_ops_test.cpp"});
    EXPECT_EQ(cache.read().values<float>(), (std::vector<float>{1, 2, 3, 4}));
    program.run({{row, std::vector<float>{8, 9}}, {at, std::vector<std::int32_t>{2}}});
    EXPECT_EQ(cache.read().values<float>(), (std::vector<float>{1, 2, 8, 9}));
  }
}

TEST(SliceAssign, RefusesMismatchedOperands) {
  Graph g;
  const Tensor x = g.input("x", {3, 4}), s = g.input("s", {3, 2}), d = g.input("d", {3, 2}, f64);
  expect_error<ShapeError>([&] { slice_assign(x, s, 1, 3); }, {"[slice_assign]", "do not fit", "size 4"});
  expect_error<ShapeError>([&] { slice_assign(x, s, 1, 0, 0); }, {"step is 0"});
  expect_error<ShapeError>([&] { slice_assign(x, s, 0, 0); }, {"along axis 0 only", "f32 [3, 2]"});
  expect_error<ShapeError>([&] { slice_assign(x, s, 2, 0); }, {"axis 2", "shape_ops_test.cpp"});
  expect_error<DTypeError>([&] { slice_assign(x, d, 1, 0); }, {"differ in dtype"});
  expect_error<DTypeError>([&] { slice_assign(x, s, 1, g.input("at", {})); }, {"i64 or i32"});
}

TEST(SliceAt, ReadsFromAGivenStartOnEveryView) {
  for (View kind : all_views) {
    Graph g;
    const Given x = given(g, {3, 5, 2}, f64, kind, 9);
    const Given at = given(g, {1}, i64, View::contiguous, 10, 2, 3);
    Vector expected;
    const Vector all = x.values;
    for (int i = 0; i < 3; ++i)
      for (int j = 2; j < 5; ++j)
        for (int k = 0; k < 2; ++k) expected.push_back(all[(i * 5 + j) * 2 + k]);
    const Tensor y = slice_at(x.tensor, 1, at.tensor, 3);
    expect_values(y, {x, at}, expected);
    expect_gradients(weighted_sum(y), {x, at});
  }
}

TEST(SliceAt, RefusesAStartOutOfRange) {
  Graph g;
  const Tensor x = g.input("x", {5}), at = g.input("at", {}, i64);
  const Tensor y = slice_at(x, 0, at, 3);
  expect_error<Error>(
      [&] {
        eval(y, {{x, std::vector<float>(5)}, {at, std::vector<std::int64_t>{3}}});
      },
      {"[slice_at] index 3", "expected 0 to 2"});
  expect_error<ShapeError>([&] { slice_at(x, 0, at, 6); }, {"length is 6", "expected 0 to 5"});
}

TEST(Split, GivesViewsOfThePieces) {
  for (View kind : all_views) {
    Graph g;
    const Given x = given(g, {4, 6}, f32, kind, 11);
    const auto parts = split(x.tensor, {1, 0, 5}, 1);
    const Vector all = x.values;
    std::int64_t start = 0;
    for (const Tensor& part : parts) {
      Vector expected;
      for (int i = 0; i < 4; ++i)
        for (std::int64_t j = start; j < start + part.size(1); ++j) expected.push_back(all[i * 6 + j]);
      expect_values(part, {x}, expected);
      start += part.size(1);
    }
    EXPECT_TRUE(g.node_of(parts[0].id()).op->view);
  }
}

TEST(Split, GradientJoinsPiecesAndFillsMissingOnesWithZeros) {
  for (View kind : all_views) {
    Graph g;
    const Given x = given(g, {2, 6, 2}, f64, kind, 12);
    const auto parts = split(x.tensor, {1, 2, 3}, 1);
    expect_gradients(weighted_sum(parts[0] * parts[0]) + weighted_sum(parts[2]), {x});
  }
}

TEST(Split, RefusesSizesThatDoNotAddUp) {
  Graph g;
  const Tensor x = g.input("x", {4, 6});
  expect_error<ShapeError>([&] { split(x, {1, 2}, 1); }, {"[split]", "add up to 3", "has 6", "f32 [4, 6]"});
  expect_error<ShapeError>([&] { split(x, {7, -1}, 1); }, {"[split]", "negative"});
  expect_error<ShapeError>([&] { chunk(x, 0, 1); }, {"[chunk]", "0 chunks", "shape_ops_test.cpp"});
}

TEST(Chunk, MakesTheLastOneSmaller) {
  Graph g;
  const auto parts = chunk(g.input("x", {7}), 3);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].size(0), 3);
  EXPECT_EQ(parts[2].size(0), 1);
}

TEST(Unbind, DropsTheAxis) {
  Graph g;
  const Given x = given(g, {3, 2}, f64, View::transposed, 13);
  const auto rows = unbind(x.tensor, 1);
  ASSERT_EQ(rows.size(), 2u);
  const Vector all = x.values;
  expect_values(rows[1], {x}, {all[1], all[3], all[5]});
}

TEST(Concat, JoinsAnyViewsAlongAnyAxis) {
  const std::int64_t lengths[] = {2, 1, 0, 3};
  for (DType t : moved_types)
    for (int axis : {0, 1, 2}) {
      Graph g;
      std::vector<Given> parts;
      std::vector<Tensor> tensors;
      Shape shape{2, 3, 2};
      for (int i = 0; i < 4; ++i) {
        shape[axis] = lengths[i];
        parts.push_back(given(g, shape, t, all_views[i], 14, 0, 100));
        tensors.push_back(parts.back().tensor);
      }
      shape[axis] = 6;
      std::int64_t inner = 1, outer = 1;
      for (int a = 0; a < 3; ++a) (a < axis ? outer : inner) *= a == axis ? 1 : shape[a];
      Vector expected;
      for (std::int64_t o = 0; o < outer; ++o)
        for (int i = 0; i < 4; ++i) {
          const Vector all = parts[i].values;
          const std::int64_t n = lengths[i] * inner;
          expected.insert(expected.end(), all.begin() + o * n, all.begin() + (o + 1) * n);
        }
      expect_values(concat(tensors, axis), parts, expected);
    }
}

TEST(Concat, LargeTensorsAreDividedBetweenThreads) {
  Graph g;
  const Given a = given(g, {300, 130}, f32, View::contiguous, 15);
  const Given b = given(g, {300, 250}, f32, View::transposed, 16);
  const Vector va = a.values, vb = b.values;
  Vector expected;
  for (int i = 0; i < 300; ++i) {
    expected.insert(expected.end(), va.begin() + i * 130, va.begin() + (i + 1) * 130);
    expected.insert(expected.end(), vb.begin() + i * 250, vb.begin() + (i + 1) * 250);
  }
  expect_values(concat({a.tensor, b.tensor}, 1), {a, b}, expected);
}

TEST(Concat, HasSlicesAsGradients) {
  for (View ka : all_views)
    for (View kb : all_views) {
      Graph g;
      const Given a = given(g, {2, 3}, f64, ka, 17), b = given(g, {2, 2}, f64, kb, 18);
      const Tensor y = concat({a.tensor, b.tensor, a.tensor}, -1);
      expect_gradients(weighted_sum(y * y), {a, b});
    }
}

TEST(Concat, PromotesToTheWiderDtype) {
  Graph g;
  EXPECT_EQ(concat({g.input("a", {2}, bf16), g.input("b", {1}, f64)}).dtype(), f64);
}

TEST(Concat, RefusesMismatchedOperands) {
  Graph g;
  const Tensor a = g.input("a", {2, 3}), b = g.input("b", {3, 2});
  expect_error<ShapeError>([&] { concat({a, b}, 0); }, {"[concat]", "f32 [2, 3], f32 [3, 2]", "axis 0 only"});
  expect_error<Error>([&] { concat({}, 0); }, {"[concat] got no tensors", "shape_ops_test.cpp"});
  expect_error<ShapeError>([&] { concat({a}, 2); }, {"[concat] axis 2", "shape_ops_test.cpp"});
}

TEST(Stack, AddsAnAxis) {
  Graph g;
  const Given a = given(g, {2, 2}, f64, View::transposed, 19);
  const Given b = given(g, {2, 2}, f64, View::expanded, 20);
  const Vector x = a.values, y = b.values;
  expect_values(stack({a.tensor, b.tensor}, -1), {a, b}, {x[0], y[0], x[1], y[1], x[2], y[2], x[3], y[3]});
  expect_values(stack({a.tensor, b.tensor}), {a, b}, {x[0], x[1], x[2], x[3], y[0], y[1], y[2], y[3]});
  expect_gradients(weighted_sum(stack({a.tensor, b.tensor}, 1)), {a, b});
  expect_error<ShapeError>(
      [&] {
        stack({a.tensor, slice(b.tensor, 0, 0, 1)});
      },
      {"[stack]", "[2, 2]", "[1, 2]"});
}

TEST(Pad, PutsTheValueAroundEveryAxis) {
  for (View kind : all_views) {
    Graph g;
    const Given x = given(g, {2, 3}, f64, kind, 21);
    const Vector all = x.values;
    Vector expected(4 * 6, 0.5);
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < 3; ++j) expected[(i + 1) * 6 + j + 2] = all[i * 3 + j];
    const Tensor y = pad(x.tensor, {1, 2}, {1, 1}, 0.5);
    expect_values(y, {x}, expected);
    expect_gradients(weighted_sum(y * y), {x});
  }
}

TEST(Pad, RefusesNegativeAndMissingNumbers) {
  Graph g;
  const Tensor x = g.input("x", {2, 3});
  expect_error<ShapeError>([&] { pad(x, {1}, {1}); }, {"[pad]", "per axis", "f32 [2, 3]"});
  expect_error<ShapeError>([&] { pad(x, {0, -1}, {0, 0}); }, {"[pad]", "slice()", "shape_ops_test.cpp"});
}

// The tensor is larger than one thread's part.
TEST(Full, HasItsNumberEverywhere) {
  Graph g;
  for (const DType dtype : {f64, f32, bf16, u8, boolean})
    for (const std::int64_t n : {1, 65535, 65536, 65537, 140000}) {
      const Array y = run_checked({full(g, {n}, 1, dtype)}, {})[0];
      for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(y.at(i), 1) << name_of(dtype) << " " << i << " of " << n;
    }
}

TEST(ShapeOps, AcceptEmptyTensors) {
  Graph g;
  const Given x = given(g, {0, 3}, f32, View::contiguous, 22);
  expect_values(concat({x.tensor, x.tensor}, 1), {x}, {});
  expect_values(slice_assign(x.tensor, x.tensor, 0, 0), {x}, {});
  expect_values(pad(x.tensor, {1, 0}, {0, 0}, 2), {x}, {2, 2, 2});
}

TEST(ShapeOps, AreDifferentiableTwice) {
  Graph g;
  const Given x = given(g, {3, 4}, f64, View::contiguous, 23);
  const Given s = given(g, {3, 2}, f64, View::contiguous, 24);
  const auto parts = split(slice_assign(x.tensor, s.tensor * s.tensor, 1, 1), {1, 3}, 1);
  const Tensor y = concat({parts[1], slice(parts[1], 1, 0, 2) * parts[0]}, 1);
  const auto z = gradients(weighted_sum(y * y * y), {x.input, s.input});
  expect_gradients(weighted_sum(z[0], 5) + weighted_sum(z[1], 6), {x, s});
}

}  // namespace
