// Tests ops that select rows by index: embedding, index_select, index_add and index_assign.
#include "core/base/piece_size.h"
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

Given indices(Graph& g, const Shape& shape, DType t, View kind, std::int64_t high, std::uint64_t seed) {
  return given(g, shape, t, kind, seed, 0, static_cast<double>(high));  // a number of rows, rounded down
}

TEST(Embedding, PicksRowsOnEveryView) {
  for (DType t : {f64, f32, bf16, f16, i32})
    for (View kw : all_views)
      for (View ki : all_views) {
        Graph g;
        const Given w = given(g, {5, 3}, t, kw, 2, 0, 100);
        const Given i = indices(g, {2, 4}, t == f32 ? i32 : i64, ki, 5, 2);
        Vector expected;
        const Vector rows = w.values;
        for (double index : i.values)
          for (int c = 0; c < 3; ++c) expected.push_back(rows[static_cast<std::size_t>(index) * 3 + c]);
        const Tensor y = embedding(w.tensor, i.tensor);
        EXPECT_EQ(y.shape(), (Shape{2, 4, 3}));
        expect_values(y, {w, i}, expected);
      }
}

TEST(Embedding, GradientSumsOverRepeatedIndices) {
  for (View kw : all_views)
    for (View ki : all_views) {
      Graph g;
      const Given w = given(g, {4, 3}, f64, kw, 3);
      const Given i = indices(g, {3, 4}, i64, ki, 4, 4);
      const Tensor y = embedding(w.tensor, i.tensor);
      expect_gradients(weighted_sum(y * y), {w, i});
    }
}

TEST(Embedding, GradientIsBitwiseEqualForAnyNumberOfThreads) {
  Graph g;
  const Tensor w = g.input("w", {37, 300}, f32), i = g.input("i", {2000}, i64);
  Array weight({37, 300}, f32), index({2000}, i64), cotangent({2000, 300}, f32);
  for (std::int64_t k = 0; k < index.numel(); ++k)
    index.set(k, static_cast<double>(k * k % 8 * (k / 7 % 6)));  // some indices occur often, some never
  for (std::int64_t k = 0; k < cotangent.numel(); ++k) cotangent.set(k, std::sin(static_cast<double>(k)));
  const Tensor y = embedding(w, i);
  const Tensor z = gradients(y, {w}, g.constant(cotangent))[0];
  const std::vector<Feed> feeds{{w, weight}, {i, index}};
  const Array one = eval(z, feeds, {.threads = 1});
  for (int threads : {2, 3, 7}) EXPECT_TRUE(eval(z, feeds, {.threads = threads}).same_bits(one)) << threads;
  if (has_small_pieces) return;
  // All rows are one piece. So they are added in order in f32, like in the plain loop.
  std::vector<float> expected(37 * 300);
  for (std::int64_t k = 0; k < 2000; ++k)
    for (int c = 0; c < 300; ++c)
      expected[static_cast<std::size_t>(index.at(k)) * 300 + c] += cotangent.data<float>()[k * 300 + c];
  EXPECT_EQ(one.values<float>(), expected);
}

TEST(Embedding, GradientIn16BitTypesIsSummedInF32) {
  // 2^-8 is added 4096 times. In bf16, the sum would stop at 2.
  Graph g;
  const Tensor w = g.input("w", {2, 3}, bf16), i = g.input("i", {4096}, i32);
  const Tensor z = gradients(sum(cast(embedding(w, i), f32)) * 0.00390625, {w})[0];
  const Array got = eval(z, {{w, Array({2, 3}, bf16)}, {i, Array({4096}, i32)}}, {.verify = true});
  for (int c = 0; c < 3; ++c) {
    EXPECT_EQ(got.at(c), 16);
    EXPECT_EQ(got.at(3 + c), 0);
  }
}

TEST(Embedding, ReportsAnIndexOutOfRangeWithPositionAndLine) {
  for (int threads : {1, 4}) {
    Graph g;
    const Parameter table("table", Array({6, 600}, f32));
    const Tensor i = g.input("i", {3, 50}, i64);
    const Tensor w = g.param(table), y = embedding(w, i), loss = sum(y);
    Program program =
        compile(g, {loss}, {.assign = {{table, w - gradients(loss, {w})[0]}}, .threads = threads});
    Array index({3, 50}, i64);
    for (double bad : {6.0, -1.0, 1e15}) {
      index.set(70, bad);
      index.set(120, 17);
      expect_error<Error>(
          [&] {
            program.run({{i, index}});
          },
          {"[embedding] index ", "at position 70", "expected 0 to 5", "index_test.cpp"});
    }
    for (double v : table.read().values<float>()) ASSERT_EQ(v, 0);  // later steps have not run
    program.run({{i, Array({3, 50}, i64)}});
    EXPECT_EQ(table.read().at(0), -150);
  }
}

TEST(Embedding, RefusesWrongOperands) {
  Graph g;
  const Tensor w = g.input("w", {5, 3}), i = g.input("i", {2}, i64);
  expect_error<DTypeError>([&] { embedding(w, w); }, {"[embedding]", "i64 or i32", "index_test.cpp"});
  expect_error<ShapeError>([&] { embedding(slice(w, 0, 0, 1).reshape({3}), i); }, {"[embedding]", "two dim"});
}

// For each element of src that is written to a slice of x [A, B, C] on `axis`, calls f(position in x,
// position in src) in order. If the index is −1, the element is not written.
template <class F>
void for_each_place(const Shape& shape, int axis, const Vector& indices, F f) {
  std::int64_t outer = 1, inner = 1;
  for (int a = 0; a < axis; ++a) outer *= shape[a];
  for (int a = axis + 1; a < shape.size(); ++a) inner *= shape[a];
  std::size_t from = 0;
  for (std::int64_t p = 0; p < outer; ++p)
    for (const double i : indices)
      for (std::int64_t q = 0; q < inner; ++q, ++from)
        if (i >= 0) f((p * shape[axis] + static_cast<std::int64_t>(i)) * inner + q, from);
}

// Plain loops compute out[p, j, q] = x[p, i[j], q] and its transpose.
Vector selected(const Vector& x, const Shape& shape, int axis, const Vector& index) {
  Vector out;
  for_each_place(shape, axis, index, [&](std::int64_t to, std::size_t) { out.push_back(x[to]); });
  return out;
}

Vector added(Vector x, const Shape& shape, int axis, const Vector& index, const Vector& src) {
  for_each_place(shape, axis, index, [&](std::int64_t to, std::size_t from) { x[to] += src[from]; });
  return x;
}

TEST(IndexSelect, AcceptsIndicesOfAnyShapeOnAnyAxis) {
  const Shape shape{3, 4, 2};
  for (int axis : {0, 1, 2})
    for (View kx : all_views)
      for (View ki : all_views) {
        Graph g;
        const Given x = given(g, shape, f64, kx, 4);
        const Given i = indices(g, {2, 3}, i64, ki, shape[axis], 8);
        const Tensor y = index_select(x.tensor, axis, i.tensor);
        expect_values(y, {x, i}, selected(x.values, shape, axis, i.values));
        expect_gradients(weighted_sum(y * y), {x, i});
      }
}

TEST(IndexSelect, LargeSlicesAreDividedBetweenThreads) {
  Graph g;
  const Given x = given(g, {3, 40000}, f32, View::transposed, 5);
  const Given i = indices(g, {5}, i32, View::contiguous, 3, 10);
  expect_values(index_select(x.tensor, 0, i.tensor), {x, i}, selected(x.values, {3, 40000}, 0, i.values));
}

TEST(IndexAdd, AddsAlongAnyAxisInEveryDtype) {
  const Shape shape{3, 4, 2};
  for (DType t : {f64, f32, bf16, f16, i64, i32, u8})
    for (int axis : {0, 1, 2})
      for (View kx : all_views)
        for (View ks : all_views) {
          Graph g;
          Shape added_shape = shape;
          added_shape[axis] = 5;
          const Given x = given(g, shape, t, kx, 6, is_float(t) ? -1 : 0, is_float(t) ? 1 : 16),
                      s = given(g, added_shape, t, ks, 7, is_float(t) ? -1 : 0, is_float(t) ? 1 : 16);
          const Given i = indices(g, {5}, i32, View::sliced, shape[axis], 12);
          // Each result has up to five additions in the compute type and one rounding. Partial sums are below
          // 6.
          const double tolerance = is_float(t) ? rounding(t) + 30 * rounding(compute_type(t)) : 0;
          expect_values(index_add(x.tensor, axis, i.tensor, s.tensor), {x, i, s},
                        added(x.values, shape, axis, i.values, s.values), tolerance);
        }
}

// Slices are summed in blocks of 128 elements. Some test builds use smaller blocks.
TEST(IndexAdd, HasSlicesAroundTheSizeOfABlock) {
  for (const DType t : {f64, f32, bf16})
    for (const std::int64_t length : {31, 32, 33, 63, 64, 127, 128, 129, 255, 256, 257}) {
      Graph g;
      const Given x = given(g, {3, length}, t, View::contiguous, 8);
      const Given s = given(g, {5, length}, t, View::contiguous, 9);
      const Given i = indices(g, {5}, i64, View::contiguous, 3, 14);
      expect_values(index_add(x.tensor, 0, i.tensor, s.tensor), {x, i, s},
                    added(x.values, {3, length}, 0, i.values, s.values),
                    rounding(t) + 30 * rounding(compute_type(t)));
    }
}

TEST(IndexAdd, HasGradientsOfBothOperands) {
  for (int axis : {0, 1}) {
    Graph g;
    const Given x = given(g, {3, 4}, f64, View::transposed, 8);
    const Given s = given(g, axis == 0 ? Shape{2, 3, 4} : Shape{3, 2, 3}, f64, View::sliced, 9);
    const Given i = indices(g, {2, 3}, i64, View::contiguous, 3, 14);
    const Tensor y = index_add(x.tensor, axis, i.tensor, s.tensor);
    expect_gradients(weighted_sum(y * y), {x, s, i});
  }
}

TEST(IndexAdd, AcceptsVectorsAndEmptyTensors) {
  Graph g;
  const Given x = given(g, {4}, f64, View::contiguous, 9);
  const Given s = given(g, {6}, f64, View::contiguous, 10);
  const Given i = indices(g, {6}, i64, View::contiguous, 4, 16);
  expect_values(index_add(x.tensor, 0, i.tensor, s.tensor), {x, i, s},
                added(x.values, {4}, 0, i.values, s.values), 1e-15);
  const Tensor none = slice(i.tensor, 0, 0, 0);
  expect_values(index_add(x.tensor, 0, none, slice(s.tensor, 0, 0, 0)), {x, i, s}, x.values);
}

TEST(IndexAdd, RefusesWrongShapes) {
  Graph g;
  const Tensor x = g.input("x", {3, 4}), i = g.input("i", {2}, i64), s = g.input("s", {3, 4});
  expect_error<ShapeError>([&] { index_add(x, 0, i, s); }, {"[index_add]", "must have shape [2, 4]"});
  expect_error<Error>(
      [&] {
        eval(index_add(x, 0, i, slice(s, 0, 0, 2)),
             {{x, Array({3, 4}, f32)}, {s, Array({3, 4}, f32)}, {i, std::vector<std::int64_t>{0, 3}}});
      },
      {"[index_add] index 3 at position 1", "expected 0 to 2"});
}

// Computes the values of x [A, B, C] after index_assign on `axis`.
Vector assigned(Vector x, const Shape& shape, int axis, const Vector& indices, const Vector& src) {
  for_each_place(shape, axis, indices, [&](std::int64_t to, std::size_t from) { x[to] = src[from]; });
  return x;
}

TEST(IndexAssign, AssignsAlongAnyAxisInEveryDtype) {
  const Shape shape{3, 4, 2};
  for (DType t : {f64, f32, bf16, f16, i64, i32, u8, boolean})
    for (int axis : {0, 1, 2})
      for (View kx : all_views)
        for (View ks : all_views) {
          Graph g;
          Shape part = shape;
          part[axis] = 5;
          const Given x = given(g, shape, t, kx, 6, 0, t == boolean ? 2 : 16),
                      s = given(g, part, t, ks, 7, 0, t == boolean ? 2 : 16);
          // Indices start at −1 and are rounded down. There are more indices than rows.
          const Given i = given(g, {5}, i32, View::sliced, 12, 0, static_cast<double>(shape[axis]) + 1);
          Vector numbers = i.values;
          for (double& n : numbers) n -= 1;
          expect_values(index_assign(x.tensor, axis, i.tensor - 1, s.tensor), {x, i, s},
                        assigned(x.values, shape, axis, numbers, s.values));
        }
}

TEST(IndexAssign, HasGradientsOfBothOperands) {
  for (int axis : {0, 1}) {
    Graph g;
    const Given x = given(g, {3, 4}, f64, View::transposed, 8);
    const Given s = given(g, axis == 0 ? Shape{2, 3, 4} : Shape{3, 2, 3}, f64, View::sliced, 9);
    const Given i = indices(g, {2, 3}, i64, View::contiguous, 4, 14);
    const Tensor y = index_assign(x.tensor, axis, i.tensor - 1, s.tensor);
    expect_gradients(weighted_sum(y * y), {x, s, i});
  }
}

TEST(IndexAssign, WritesACacheInPlaceOnAnyNumberOfThreads) {
  constexpr std::int64_t rows = 300, width = 70;
  for (int threads : {1, 2, 5}) {
    Graph g;
    const Parameter cache("cache", Array({rows, width}, f32));
    const Given s = given(g, {2, 100, width}, f32, View::transposed, 3);
    const Given i = indices(g, {2, 100}, i64, View::contiguous, rows, 5);
    Program program = compile(
        g, {},
        {.assign = {{cache, index_assign(g.param(cache), 0, i.tensor, s.tensor)}}, .threads = threads});
    program.run({s.feed(), i.feed()});
    const Vector expected = assigned(Vector(rows * width), {rows, width}, 0, i.values, s.values);
    const Array after = cache.read();
    for (std::int64_t n = 0; n < after.numel(); ++n) ASSERT_EQ(after.at(n), expected[n]) << n;
  }
}

TEST(IndexAssign, AssignsAListInOneStepOnAnyNumberOfThreads) {
  for (int threads : {1, 3})
    for (View view : all_views) {
      Graph g;
      const std::vector<Given> xs{given(g, {7, 6}, f32, view, 1), given(g, {7, 2, 5}, f32, view, 2),
                                  given(g, {7}, f32, view, 3), given(g, {7, 16}, f32, view, 4)},
          ss{given(g, {3, 2, 6}, f32, view, 5), given(g, {3, 2, 2, 5}, f32, view, 6),
             given(g, {3, 2}, f32, view, 7), given(g, {3, 2, 16}, f32, view, 8)};
      const Given i = indices(g, {3, 2}, i32, View::contiguous, 8, 9);
      Vector numbers = i.values;
      for (double& n : numbers) n -= 1;
      std::vector<Tensor> held, added;
      std::vector<Feed> feeds{i.feed()};
      for (std::size_t k = 0; k < xs.size(); ++k) {
        held.push_back(xs[k].tensor), added.push_back(ss[k].tensor);
        feeds.push_back(xs[k].feed()), feeds.push_back(ss[k].feed());
      }
      const std::vector<Tensor> all = index_assign_each(held, 0, i.tensor - 1, added);
      Program program = compile(g, all, {.threads = threads});
      EXPECT_EQ(std::ranges::count(program.steps(), &index_assign_op, &Step::op), 1);
      program.run(feeds);
      for (std::size_t k = 0; k < all.size(); ++k)
        EXPECT_EQ(doubles(program.fetch(all[k])),
                  assigned(xs[k].values, xs[k].tensor.shape(), 0, numbers, ss[k].values))
            << k;
    }
}

TEST(IndexAssign, AcceptsEmptyTensors) {
  Graph g;
  const Given x = given(g, {4}, f64, View::contiguous, 9);
  const Given i = indices(g, {6}, i64, View::contiguous, 4, 16);
  const Given s = given(g, {6}, f64, View::contiguous, 10);
  expect_values(index_assign(x.tensor, 0, slice(i.tensor, 0, 0, 0), slice(s.tensor, 0, 0, 0)), {x, i, s},
                x.values);
}

TEST(IndexAssign, RefusesWrongShapesAndIndices) {
  Graph g;
  const Tensor x = g.input("x", {3, 4}), i = g.input("i", {2}, i64), s = g.input("s", {3, 4});
  expect_error<ShapeError>([&] { index_assign(x, 0, i, s); }, {"[index_assign]", "must have shape [2, 4]"});
  expect_error<DTypeError>([&] { index_assign(x, 0, i, cast(slice(s, 0, 0, 2), f64)); }, {"differ in dtype"});
  expect_error<DTypeError>([&] { index_assign(x, 0, slice(s, 0, 0, 2), s); }, {"i64 or i32"});
  const Tensor two = slice(s, 0, 0, 2), y = g.input("y", {4});
  expect_error<ShapeError>([&] { index_assign_each({x, x}, 0, i, {two}); }, {"2 tensors and 1 to assign"});
  expect_error<ShapeError>([&] { index_assign_each({}, 0, i, {}); }, {"0 tensors"});
  expect_error<ShapeError>([&] { index_assign_each({x, x}, 0, i, {two, s}); }, {"must have shape [2, 4]"});
  expect_error<ShapeError>([&] { index_assign_each({x, y}, 1, i, {slice(s, 1, 0, 2), y}); }, {"axis 1"});
  expect_error<DTypeError>(
      [&] {
        index_assign_each({x, cast(x, f64)}, 0, i, {two, cast(two, f64)});
      },
      {"differ in dtype"});
  for (const std::int64_t bad : {3, -2})
    expect_error<Error>(
        [&] {
          eval(index_assign(x, 0, i, slice(s, 0, 0, 2)),
               {{x, Array({3, 4}, f32)}, {s, Array({3, 4}, f32)}, {i, std::vector<std::int64_t>{0, bad}}});
        },
        {"[index_assign] index " + std::to_string(bad) + " at position 1", "expected 0 to 2"});
}

// Calls f(a, b, c) for every element of [A, B, C].
template <class F>
void for_each(const Shape& shape, F f) {
  for (std::int64_t a = 0; a < shape[0]; ++a)
    for (std::int64_t b = 0; b < shape[1]; ++b)
      for (std::int64_t c = 0; c < shape[2]; ++c) f(a, b, c);
}

// Index i is at (a, b, c) in indices [A, B, C]. Returns the position of the indexed element in a tensor that
// is indexed along `axis`.
std::size_t target(const Shape& shape, int axis, double i, std::int64_t a, std::int64_t b, std::int64_t c) {
  std::int64_t at[] = {a, b, c};
  at[axis] = static_cast<std::int64_t>(i);
  return static_cast<std::size_t>((at[0] * shape[1] + at[1]) * shape[2] + at[2]);
}

TEST(Gather, PicksElementsAlongAnyAxis) {
  const Shape shape{3, 4, 5}, reach{2, 3, 4};  // on other axes, indices have smaller extents than the tensor
  for (DType t : {f64, f32, bf16, i64, u8})
    for (int axis : {0, 1, 2})
      for (View kx : all_views)
        for (View ki : all_views) {
          Graph g;
          Shape s = reach;
          s[axis] = 6;
          const Given x = given(g, shape, t, kx, 1, 0, 100), i = indices(g, s, i64, ki, shape[axis], 2);
          Vector expected;
          std::size_t n = 0;
          for_each(s, [&](auto a, auto b, auto c) {
            expected.push_back(x.values[target(shape, axis, i.values[n++], a, b, c)]);
          });
          const Tensor y = gather(x.tensor, axis, i.tensor);
          expect_values(y, {x, i}, expected);
          if (t == f64 && kx != View::contiguous) expect_gradients(weighted_sum(y * y), {x, i});
        }
}

TEST(Gather, ReportsAnIndexOutOfRange) {
  Graph g;
  const Given x = given(g, {300, 40}, f32);
  const Tensor i = g.input("i", {300, 200}, i32);
  Array index({300, 200}, i32);
  index.set(50000, -1);
  index.set(50001, 40);
  expect_error<Error>(
      [&] {
        eval(gather(x.tensor, 1, i), {x.feed(), {i, index}}, {.threads = 3});
      },
      {"[gather] index -1 at position 50000", "expected 0 to 39", "index_test.cpp"});
  expect_error<ShapeError>([&] { gather(x.tensor, 0, i); }, {"[gather]", "beyond the tensor along axis 1"});
  expect_error<ShapeError>([&] { gather(x.tensor, 0, slice(i, 0, 0, 1).reshape({200})); },
                           {"[gather]", "as many dimensions"});
}

TEST(ScatterAdd, AddsInOrderAlongAnyAxisInEveryDtype) {
  const Shape shape{3, 4, 20};  // more neighbors than the kernel adds at the same time
  for (DType t : {f64, f32, bf16, f16, i64, i32, u8})
    for (int axis : {0, 1, 2})
      for (View kx : all_views)
        for (View ks : all_views) {
          Graph g;
          Shape reach{2, 3, 19}, more{3, 5, 20};
          reach[axis] = more[axis] = 7;
          const double low = is_float(t) ? -1 : 0, high = is_float(t) ? 1 : 16;
          const Given x = given(g, shape, t, kx, 1, low, high), s = given(g, more, t, ks, 2, low, high);
          const Given i = indices(g, reach, i32, View::transposed, shape[axis], 3);
          Vector expected = x.values;
          std::size_t n = 0;
          for_each(reach, [&](auto a, auto b, auto c) {
            expected[target(shape, axis, i.values[n++], a, b, c)] +=
                s.values[static_cast<std::size_t>((a * more[1] + b) * more[2] + c)];
          });
          // Each result has up to seven additions in the compute type and one rounding. Partial sums are
          // below 8.
          const double tolerance = is_float(t) ? rounding(t) + 56 * rounding(compute_type(t)) : 0;
          expect_values(scatter_add(x.tensor, axis, i.tensor, s.tensor), {x, i, s}, expected, tolerance);
        }
}

TEST(ScatterAdd, AcceptsMoreIndicesThanElements) {
  Graph g;
  const Given x = given(g, {7}, f64), s = given(g, {1000}, f64, View::sliced, 2);
  const Given i = indices(g, {1000}, i64, View::sliced, 7, 3);
  Vector expected = x.values;
  for (std::size_t n = 0; n < 1000; ++n) expected[static_cast<std::size_t>(i.values[n])] += s.values[n];
  expect_values(scatter_add(x.tensor, 0, i.tensor, s.tensor), {x, i, s},
                expected);  // the same order of additions
}

TEST(ScatterAdd, HasGradientsOfBothOperands) {
  for (int axis : {0, 1})
    for (View kind : all_views) {
      Graph g;
      const Given x = given(g, {3, 4}, f64, kind, 1), s = given(g, {4, 5}, f64, kind, 2);
      const Given i = indices(g, {3, 4}, i64, kind, 3, 3);
      const Tensor y = scatter_add(x.tensor, axis, i.tensor, s.tensor);
      expect_gradients(weighted_sum(y * y), {x, s, i});
    }
}

TEST(ScatterAdd, ReportsAnIndexOutOfRange) {
  Graph g;
  const Given x = given(g, {3, 20}, f32), s = given(g, {4, 18}, f32);
  const Tensor i = g.input("i", {4, 18}, i64);
  Array index({4, 18}, i64);
  index.set(2 * 18 + 17, 3);
  expect_error<Error>(
      [&] {
        eval(scatter_add(x.tensor, 0, i, s.tensor), {x.feed(), s.feed(), {i, index}});
      },
      {"[scatter_add] index 3 at position 53", "expected 0 to 2"});
}

TEST(ScatterAdd, AnEmptyTargetIsOutOfRange) {
  Graph g;
  const Tensor x = g.input("x", {0}), i = g.input("i", {2}, i64), s = g.input("s", {2});
  expect_error<Error>(
      [&] {
        eval(scatter_add(x, 0, i, s), {{i, std::vector<std::int64_t>{0, 0}}, {s, std::vector<float>(2)}});
      },
      {"[scatter_add] index 0 at position 0"});
}

TEST(OneHot, MarksTheIndexedClass) {
  for (DType t : {i64, f32, bf16}) {
    Graph g;
    const Given i = indices(g, {2, 3}, i32, View::transposed, 4, 1);
    const Tensor y = one_hot(i.tensor, 4, t);
    EXPECT_EQ(y.shape(), (Shape{2, 3, 4}));
    EXPECT_EQ(y.dtype(), t);
    Vector expected(24, 0);
    for (std::size_t n = 0; n < 6; ++n) expected[n * 4 + static_cast<std::size_t>(i.values[n])] = 1;
    expect_values(y, {i}, expected);
  }
}

TEST(OneHot, ReportsAClassOutOfRange) {
  Graph g;
  const Tensor i = g.input("i", {2}, i64);
  expect_error<Error>(
      [&] {
        eval(one_hot(i, 3), {{i, std::vector<std::int64_t>{1, 3}}});
      },
      {"[one_hot/scatter_add] index 3 at position 1", "expected 0 to 2"});
}

}  // namespace
