// linear_cross_entropy compared with cross_entropy of a product, which has kernels of its own.
#include <tilegrad/ops/linear_cross_entropy.h>
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

// The same of plain ops. z_loss is that of the mean over targets that count.
Tensor plain(const Tensor& x, const Tensor& w, const Tensor& targets, const LinearCrossEntropyOptions& o) {
  const Tensor logits = matmul_wide(x, w);
  Tensor loss = cross_entropy(
      logits, targets,
      {.ignore_index = o.ignore_index, .reduction = Reduction::none, .label_smoothing = o.label_smoothing});
  const Tensor counts = not_equal(cast(targets, i64), static_cast<double>(o.ignore_index));
  const Tensor lse = logsumexp(logits, {-1});
  loss = loss + where(counts, o.z_loss * lse * lse, 0);
  if (o.reduction == Reduction::none) return loss;
  return o.reduction == Reduction::sum ? sum(loss) : sum(loss) / maximum(sum(cast(counts, loss.dtype())), 1);
}

std::vector<LinearCrossEntropyOptions> every_option() {
  return {{},
          {.ignore_index = 3},
          {.reduction = Reduction::none, .label_smoothing = 0.1},
          {.ignore_index = 3, .reduction = Reduction::sum, .z_loss = 0.02},
          {.ignore_index = 3, .label_smoothing = 0.2, .z_loss = 0.02},
          {.label_smoothing = 1}};
}

constexpr std::int64_t rows = 6, width = 5, classes = 21;
const std::vector<std::int32_t> some_targets{3, 0, 20, 5, 3, 7};

TEST(LinearCrossEntropy, IsCrossEntropyOfTheProduct) {
  for (DType dtype : float_dtypes)
    for (View view : all_views)
      for (const LinearCrossEntropyOptions& o : every_option()) {
        SCOPED_TRACE(std::string(name_of(dtype)) + " view " + std::to_string(int(view)));
        Graph g;
        const Given x = given(g, {rows, width}, dtype, view, 1, -2, 2),
                    w = given(g, {width, classes}, dtype, view, 2, -2, 2);
        const Tensor t = g.input("t", {rows}, i32);
        const Tensor fused = linear_cross_entropy(x.tensor, w.tensor, t, o),
                     other = plain(x.tensor, w.tensor, t, o);
        ASSERT_EQ(fused.shape(), other.shape());
        ASSERT_EQ(fused.dtype(), compute_type(dtype));
        std::vector<Tensor> results{fused, other};
        for (const Tensor& loss : {sum(fused), sum(other)})
          for (const Tensor& z : gradients(loss, {x.tensor, w.tensor})) results.push_back(z);
        const auto v = run_checked(results, {x.feed(), w.feed(), {t, some_targets}});
        const double exact = dtype == f64 ? 1e-13 : 8 * std::max(rounding(dtype), 1e-6);
        EXPECT_TRUE(close(doubles(v[0]), doubles(v[1]), exact));
        for (std::size_t i : {2u, 3u}) EXPECT_TRUE(close(doubles(v[i]), doubles(v[i + 2]), exact)) << i;
      }
}

TEST(LinearCrossEntropy, TakesLeadingAxesAndTiedWeights) {
  Graph g;
  const Given x = given(g, {2, 3, width}, f64, View::contiguous, 1),
              table = given(g, {classes, width}, f64, View::contiguous, 2);
  const Tensor t = g.constant(Array::of({2, 3}, std::vector<std::int64_t>{3, 0, 20, 5, 3, 7})),
               w = transpose(table.tensor, 0, 1);
  const Tensor loss = linear_cross_entropy(x.tensor, w, t, {.reduction = Reduction::none});
  EXPECT_EQ(loss.shape(), (Shape{2, 3}));
  expect_gradients(weighted_sum(loss), {x, table});
}

// Losses, the gradients of x and w, whole and in chunks: of a row, of rows that divide 6 and of rows that do
// not, with a target that is ignored in between.
TEST(LinearCrossEntropy, IsTheSameInChunks) {
  for (DType dtype : float_dtypes)
    for (const bool is_tied : {false, true})
      for (LinearCrossEntropyOptions o : every_option()) {
        Graph g;
        const Given x = given(g, {2, 3, width}, dtype, View::contiguous, 1, -2, 2),
                    own = given(g, {width, classes}, dtype, View::contiguous, 2, -2, 2),
                    table = given(g, {classes, width}, dtype, View::contiguous, 2, -2, 2);
        const Given& weight = is_tied ? table : own;
        const Tensor t = g.input("t", {2, 3}, i32), w = is_tied ? transpose(table.tensor, 0, 1) : own.tensor;
        std::vector<Tensor> results;
        const std::vector<std::int64_t> sizes{0, 1, 2, 4, 5, 6, 100};
        for (const std::int64_t rows_at_a_time : sizes) {
          o.chunk_rows = rows_at_a_time;
          const Tensor loss = linear_cross_entropy(x.tensor, w, t, o);
          results.push_back(loss);
          for (const Tensor& z : gradients(sum(loss), {x.tensor, weight.tensor})) results.push_back(z);
        }
        const auto v = run_checked(results, {x.feed(), weight.feed(), {t, some_targets}});
        for (std::size_t i = 3; i < v.size(); ++i) {
          SCOPED_TRACE(std::string(name_of(dtype)) + " rows " + std::to_string(sizes[i / 3]) + " result " +
                       std::to_string(i % 3));
          ASSERT_EQ(v[i].shape(), v[i % 3].shape());
          ASSERT_EQ(v[i].dtype(), v[i % 3].dtype());
          const double exact = dtype == f64 ? 1e-14 : 2 * std::max(rounding(dtype), 1e-7);
          EXPECT_TRUE(close(doubles(v[i]), doubles(v[i % 3]), exact));
        }
      }
}

// Of as many rows as training puts into a chunk at least, losses and the gradient of x have the same bits.
TEST(LinearCrossEntropy, HasTheBitsOfTheWholeInChunksOfManyRows) {
  const std::int64_t n = 600, c = 40, V = 300;
  for (DType dtype : float_dtypes)
    for (const bool is_tied : {false, true}) {
      Graph g;
      const Given x = given(g, {n, c}, dtype, View::contiguous, 1, -2, 2),
                  own = given(g, {c, V}, dtype, View::contiguous, 2, -2, 2),
                  table = given(g, {V, c}, dtype, View::contiguous, 2, -2, 2);
      const Tensor w = is_tied ? transpose(table.tensor, 0, 1) : own.tensor, t = g.input("t", {n}, i32);
      std::vector<Tensor> results;
      for (const std::int64_t chunk : {0, 128, 256}) {
        const Tensor loss = linear_cross_entropy(
            x.tensor, w, t,
            {.ignore_index = 3, .reduction = Reduction::none, .z_loss = 0.01, .chunk_rows = chunk});
        results.insert(results.end(), {loss, gradients(sum(loss), {x.tensor})[0]});
      }
      std::vector<std::int32_t> targets(n);
      for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<std::int32_t>(i * 7 % V);
      const auto v = run_checked(results, {x.feed(), (is_tied ? table : own).feed(), {t, targets}});
      for (std::size_t i = 2; i < v.size(); ++i)
        EXPECT_TRUE(v[i].same_bits(v[i % 2]))
            << name_of(dtype) << (is_tied ? " tied" : "") << " result " << i;
    }
}

TEST(LinearCrossEntropy, HasExactGradientsInChunks) {
  Graph g;
  const Given x = given(g, {5, width}, f64, View::contiguous, 1),
              table = given(g, {classes, width}, f64, View::contiguous, 2);
  const Tensor t = g.constant(Array::of({5}, std::vector<std::int64_t>{3, 0, 20, 5, 3}));
  const Tensor loss = linear_cross_entropy(x.tensor, transpose(table.tensor, 0, 1), t,
                                           {.ignore_index = 0,
                                            .reduction = Reduction::none,
                                            .label_smoothing = 0.1,
                                            .z_loss = 0.03,
                                            .chunk_rows = 2});
  expect_gradients(weighted_sum(loss), {x, table});
}

// Neither logits beside G, nor a gradient of theirs.
TEST(LinearCrossEntropy, HasOneTensorOfTheLogitsSize) {
  Graph g;
  const std::int64_t n = 64, V = 4096;
  const Tensor x = g.input("x", {n, 8}), w = g.input("w", {8, V}), t = g.input("t", {n}, i64);
  const auto z = gradients(linear_cross_entropy(x, w, t), {x, w});
  EXPECT_LT(compile(g, z).memory().arena, 3 * n * V * 4u / 2);
}

TEST(LinearCrossEntropy, StandsLargeLogits) {
  Graph g;
  const Tensor x = g.input("x", {2, 1}), w = g.input("w", {1, 3}), t = g.input("t", {2}, i64);
  const Tensor loss = linear_cross_entropy(x, w, t, {.reduction = Reduction::none});
  const auto v = run_checked({loss, gradients(sum(loss), {w})[0]}, {{x, std::vector<float>{1, 2}},
                                                                    {w, std::vector<float>{1e4f, -1e4f, 0}},
                                                                    {t, std::vector<std::int64_t>{0, 2}}});
  EXPECT_EQ(doubles(v[0]), (Vector{0, 2e4}));
  EXPECT_EQ(doubles(v[1]), (Vector{2, 0, -2}));
}

TEST(LinearCrossEntropy, HasAFirstDerivativeOnly) {
  Graph g;
  const Given x = given(g, {rows, width}), w = given(g, {width, classes});
  const Tensor t = g.input("t", {rows}, i32);
  const Tensor z = gradients(linear_cross_entropy(x.tensor, w.tensor, t), {x.tensor})[0];
  expect_error<GradientError>([&] { gradients(sum(z), {x.tensor}); }, {"first derivative only"});
  const Tensor chunks =
      gradients(linear_cross_entropy(x.tensor, w.tensor, t, {.chunk_rows = 4}), {x.tensor})[0];
  expect_error<GradientError>([&] { gradients(sum(chunks), {x.tensor}); }, {"first derivative only"});
}

TEST(LinearCrossEntropy, RefusesWhatDoesNotFit) {
  Graph g;
  const Given x = given(g, {3, 4}), w = given(g, {4, 7});
  const Tensor t = g.input("t", {3}, i64);
  const auto call = [&](const Tensor& a, const Tensor& b, const Tensor& c, LinearCrossEntropyOptions o = {}) {
    return [=] { linear_cross_entropy(a, b, c, o); };
  };
  expect_error<ShapeError>(call(x.tensor, x.tensor, t), {"needs x [n, c], w [c, V] and targets [n]"});
  expect_error<ShapeError>(call(x.tensor, w.tensor, g.input("u", {4}, i64)), {"targets [n]"});
  expect_error<ShapeError>(call(x.tensor, x.tensor, t, {.chunk_rows = 1}),
                           {"needs x [n, c], w [c, V] and targets [n]", "[3, 4]"});
  expect_error<ShapeError>(call(x.tensor, w.tensor, g.input("v", {4}, i64), {.chunk_rows = 1}),
                           {"targets [n]"});
  expect_error<Error>(call(x.tensor, w.tensor, t, {.chunk_rows = -1}),
                      {"[linear_cross_entropy] chunk_rows is -1"});
  expect_error<DTypeError>(call(x.tensor, w.tensor, g.input("f", {3}, f32)), {});
  expect_error<DTypeError>(call(cast(x.tensor, f32), w.tensor, t), {"differ in dtype"});
  expect_error<Error>(call(x.tensor, w.tensor, t, {.label_smoothing = 2}),
                      {"[linear_cross_entropy] label_smoothing is 2"});
  expect_error<Error>(call(x.tensor, w.tensor, t, {.z_loss = -1}), {"[linear_cross_entropy] z_loss is -1"});
  const Tensor loss = linear_cross_entropy(x.tensor, w.tensor, t);
  expect_error<Error>(
      [&] {
        eval(loss, {x.feed(), w.feed(), {t, std::vector<std::int64_t>{0, 7, 1}}});
      },
      {"[linear_cross_entropy] index 7 at position 1 is out of range"});
}

}  // namespace
