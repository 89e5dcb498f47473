// Compares linear_cross_entropy with cross_entropy of a matmul. linear_cross_entropy has separate kernels.
#include <tilegrad/ops/linear_cross_entropy.h>
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

// Computes the same loss with plain ops. z_loss is the mean over targets that count.
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

TEST(LinearCrossEntropy, MatchesCrossEntropyOfTheProduct) {
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

TEST(LinearCrossEntropy, AcceptsLeadingAxesAndTiedWeights) {
  Graph g;
  const Given x = given(g, {2, 3, width}, f64, View::contiguous, 1),
              table = given(g, {classes, width}, f64, View::contiguous, 2);
  const Tensor t = g.constant(Array::of({2, 3}, std::vector<std::int64_t>{3, 0, 20, 5, 3, 7})),
               w = transpose(table.tensor, 0, 1);
  const Tensor loss = linear_cross_entropy(x.tensor, w, t, {.reduction = Reduction::none});
  EXPECT_EQ(loss.shape(), (Shape{2, 3}));
  expect_gradients(weighted_sum(loss), {x, table});
}

std::int64_t count(const Graph& g, std::string_view op) {
  return std::ranges::count_if(g.nodes(), [&](const Node& n) { return n.op->name == op; });
}

// Computes losses and the gradients of x and w in chunks of one unit, two units, a partial unit, and all
// rows. Each case must have the expected number of chunks and bitwise identical results. 607 rows are eight
// units of 64 rows and one unit of 95 rows.
TEST(LinearCrossEntropy, AnyChunksMatchBitwise) {
  const std::int64_t n = 607, c = 40, V = 300;
  const std::vector<std::pair<std::int64_t, std::int64_t>> sizes{{0, 1},   {1, 9},   {64, 9},  {128, 5},
                                                                 {150, 5}, {301, 3}, {607, 1}, {5000, 1}};
  for (DType dtype : float_dtypes)
    for (const bool is_tied : {false, true})
      for (LinearCrossEntropyOptions o : every_option()) {
        if (dtype != f32 && o.reduction != Reduction::mean) continue;
        o.unit_rows = 33;
        Graph g;
        const Given x = given(g, {n, c}, dtype, View::contiguous, 1, -2, 2),
                    own = given(g, {c, V}, dtype, View::contiguous, 2, -2, 2),
                    table = given(g, {V, c}, dtype, View::contiguous, 2, -2, 2);
        const Given& weight = is_tied ? table : own;
        const Tensor t = g.input("t", {n}, i32), w = is_tied ? transpose(table.tensor, 0, 1) : own.tensor;
        std::vector<Tensor> results;
        for (const auto& [rows_at_a_time, chunks] : sizes) {
          o.chunk_rows = rows_at_a_time;
          const std::int64_t before = count(g, "linear_cross_entropy");
          const Tensor loss = linear_cross_entropy(x.tensor, w, t, o);
          EXPECT_EQ(count(g, "linear_cross_entropy") - before, chunks) << rows_at_a_time;
          results.push_back(loss);
          for (const Tensor& z : gradients(sum(loss), {x.tensor, weight.tensor})) results.push_back(z);
        }
        std::vector<std::int32_t> targets(n);
        for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<std::int32_t>(i * 7 % V);
        for (const int threads : {1, 2}) {
          const auto v =
              eval(results, {x.feed(), weight.feed(), {t, targets}}, {.threads = threads, .verify = true});
          for (std::size_t i = 3; i < v.size(); ++i)
            EXPECT_TRUE(v[i].same_bits(v[i % 3])) << name_of(dtype) << (is_tied ? " tied" : "") << " rows "
                                                  << sizes[i / 3].first << " result " << i % 3;
        }
      }
}

// Fewer than two units cannot be divided into chunks.
TEST(LinearCrossEntropy, HasUnitsIfThereAreAtLeastTwo) {
  EXPECT_EQ(linear_cross_entropy_unit(50304), 4096);
  EXPECT_EQ(linear_cross_entropy_unit(8192), 4096);
  EXPECT_EQ(linear_cross_entropy_unit(8000), 8192);
  EXPECT_EQ(linear_cross_entropy_unit(65), 1 << 19);
  EXPECT_EQ(linear_cross_entropy_unit(1), 1 << 25);
  EXPECT_EQ(linear_cross_entropy_unit(std::int64_t{1} << 62), 4096);
  expect_error<Error>([] { linear_cross_entropy_unit(0); }, {"[linear_cross_entropy] 0 classes"});
  const auto products = [](std::int64_t n, LinearCrossEntropyOptions o) {
    Graph g;
    const Given x = given(g, {n, 4}), w = given(g, {4, 7});
    const Tensor loss = linear_cross_entropy(x.tensor, w.tensor, g.input("t", {n}, i64), o);
    gradients(loss, {x.tensor, w.tensor});
    return std::pair(count(g, "linear_cross_entropy"), count(g, "matmul_in_units"));
  };
  using Counts = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(products(127, {.chunk_rows = 1, .unit_rows = 64}), (Counts{1, 0}));
  EXPECT_EQ(products(128, {.unit_rows = 64}), (Counts{1, 2}));
  EXPECT_EQ(products(128, {.chunk_rows = 1, .unit_rows = 64}), (Counts{2, 4}));
  EXPECT_EQ(products(128, {.chunk_rows = 1}), (Counts{1, 0}));
}

TEST(LinearCrossEntropy, HasExactGradientsInChunks) {
  Graph g;
  const std::int64_t n = 131;
  const Given x = given(g, {n, width}, f64, View::contiguous, 1),
              table = given(g, {classes, width}, f64, View::contiguous, 2);
  std::vector<std::int64_t> targets;
  for (std::int64_t i = 0; i < n; ++i) targets.push_back(i * 3 % classes);
  const Tensor t = g.constant(Array::of({n}, targets));
  const Tensor loss = linear_cross_entropy(x.tensor, transpose(table.tensor, 0, 1), t,
                                           {.ignore_index = 0,
                                            .reduction = Reduction::none,
                                            .label_smoothing = 0.1,
                                            .z_loss = 0.03,
                                            .chunk_rows = 2,
                                            .unit_rows = 64});
  expect_gradients(weighted_sum(loss), {x, table});
}

// Only G has this size. Neither the logits nor their gradient are stored.
TEST(LinearCrossEntropy, HasOneTensorOfTheLogitsSize) {
  Graph g;
  const std::int64_t n = 64, V = 4096;
  const Tensor x = g.input("x", {n, 8}), w = g.input("w", {8, V}), t = g.input("t", {n}, i64);
  const auto z = gradients(linear_cross_entropy(x, w, t), {x, w});
  EXPECT_LT(compile(g, z).memory().arena, 3 * n * V * 4u / 2);
}

TEST(LinearCrossEntropy, HandlesLargeLogits) {
  Graph g;
  const Tensor x = g.input("x", {2, 1}), w = g.input("w", {1, 3}), t = g.input("t", {2}, i64);
  const Tensor loss = linear_cross_entropy(x, w, t, {.reduction = Reduction::none});
  const auto v = run_checked({loss, gradients(sum(loss), {w})[0]}, {{x, std::vector<float>{1, 2}},
                                                                    {w, std::vector<float>{1e4f, -1e4f, 0}},
                                                                    {t, std::vector<std::int64_t>{0, 2}}});
  EXPECT_EQ(doubles(v[0]), (Vector{0, 2e4}));
  EXPECT_EQ(doubles(v[1]), (Vector{2, 0, -2}));
}

TEST(LinearCrossEntropy, NoRowsGiveZeroLossAndGradients) {
  for (const Shape& rows : {Shape{0}, Shape{0, 3}, Shape{2, 0}})
    for (std::int64_t chunk : {0, 1, 64, 100000})
      for (std::int64_t unit : {0, 1, 64, 100000}) {
        Graph g;
        Shape shape = rows;
        shape.push_back(4);
        const Tensor x = g.input("x", shape), w = g.input("w", {4, 7}), t = g.input("t", rows, i64);
        const Tensor loss = linear_cross_entropy(
            x, w, t, {.label_smoothing = 0.1, .z_loss = 0.1, .chunk_rows = chunk, .unit_rows = unit});
        std::vector<Tensor> made = gradients(loss, {x, w});
        made.push_back(loss);
        const auto v = eval(made, {{x, Array(shape, f32)}, {w, Array({4, 7}, f32)}, {t, Array(rows, i64)}});
        EXPECT_EQ(v[2].item<float>(), 0);
        for (std::int64_t i = 0; i < v[1].numel(); ++i) EXPECT_EQ(v[1].at(i), 0);
      }
}

TEST(LinearCrossEntropy, HasAFirstDerivativeOnly) {
  Graph g;
  const Given x = given(g, {rows, width}), w = given(g, {width, classes});
  const Tensor t = g.input("t", {rows}, i32);
  const Tensor z = gradients(linear_cross_entropy(x.tensor, w.tensor, t), {x.tensor})[0];
  expect_error<GradientError>([&] { gradients(sum(z), {x.tensor}); }, {"only a first derivative"});
  const Given many = given(g, {130, width});
  const Tensor of_many = g.input("targets", {130}, i32);
  const Tensor chunks =
      gradients(linear_cross_entropy(many.tensor, w.tensor, of_many, {.chunk_rows = 4, .unit_rows = 64}),
                {many.tensor})[0];
  expect_error<GradientError>([&] { gradients(sum(chunks), {many.tensor}); }, {"only a first derivative"});
}

TEST(LinearCrossEntropy, RefusesMismatchedOperands) {
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
  expect_error<Error>(call(x.tensor, w.tensor, t, {.unit_rows = -1}), {"and unit_rows -1"});
  const std::int64_t n = 64 * 1025;
  expect_error<Error>(call(g.input("many", {n, 4}), cast(w.tensor, f32), g.input("of_many", {n}, i64),
                           {.chunk_rows = 1, .unit_rows = 1}),
                      {"at most 1024 chunks of 65600 rows"});
  expect_error<DTypeError>(call(x.tensor, w.tensor, g.input("f", {3}, f32)), {});
  expect_error<DTypeError>(call(cast(x.tensor, f32), w.tensor, t), {"differ in dtype"});
  expect_error<Error>(call(x.tensor, w.tensor, t, {.label_smoothing = 2}),
                      {"[linear_cross_entropy] label_smoothing is out of range: got 2"});
  expect_error<Error>(call(x.tensor, w.tensor, t, {.z_loss = -1}),
                      {"[linear_cross_entropy] z_loss is out of range: got -1"});
  const Tensor loss = linear_cross_entropy(x.tensor, w.tensor, t);
  expect_error<Error>(
      [&] {
        eval(loss, {x.feed(), w.feed(), {t, std::vector<std::int64_t>{0, 7, 1}}});
      },
      {"[linear_cross_entropy] index 7 at position 1 is out of range"});
}

}  // namespace
