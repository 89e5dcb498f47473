// Compares GPU kernels with the CPU in f64, for rows, columns and lists of tensors. The sizes cover each
// variant of the kernels. Covers column sums, norms of short and long rows, the gradient norm, and AdamW over
// lists. Skipped if there is no GPU.
#include "backends/cuda/cuda.h"
#include "tests/support/op_testing.h"
#include "tests/support/parameter_list.h"

namespace {

using namespace tg;
using namespace tg::testing;

class CudaReduce : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

// Computes f on the GPU in a dtype and on the CPU in f64, from the same inputs, and compares the results. The
// tolerance is `roundings` times the dtype's unit roundoff, relative to the largest element. A second program
// must give bitwise identical results.
template <class F>
void expect_near(const std::vector<Shape>& shapes, DType dtype, double roundings, F f,
                 View view = View::contiguous) {
  Graph g, wide;
  std::vector<Given> in;
  std::vector<Tensor> x, x_wide;
  std::vector<Feed> feeds, feeds_wide;
  std::vector<Array> held;
  held.reserve(shapes.size());
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    in.push_back(given(g, shapes[i], dtype, view, i + 1));
    x.push_back(in[i].tensor);
    x_wide.push_back(wide.input("x", shapes[i], f64));
    held.push_back(Array::of(shapes[i], in[i].values));
    feeds_wide.push_back({x_wide[i], held[i]});
  }
  for (const Given& t : in) feeds.push_back(t.feed());
  const std::vector<Tensor> y = f(x), y_wide = f(x_wide);
  const std::vector<Array> expected = eval(y_wide, feeds_wide, {.device = Device::cpu()}),
                           got = eval(y, feeds, {.device = Device::cuda()}),
                           again = eval(y, feeds, {.device = Device::cuda(), .reuse = false});
  for (std::size_t i = 0; i < y.size(); ++i) {
    EXPECT_TRUE(got[i].same_bits(again[i])) << "result " << i << " differs from run to run";
    const Vector a = doubles(expected[i]), b = doubles(got[i]);
    double largest = 0, off = 0;
    for (double v : a) largest = std::max(largest, std::abs(v));
    for (std::size_t e = 0; e < a.size(); ++e) off = std::max(off, std::abs(a[e] - b[e]));
    EXPECT_LE(off, roundings * rounding(y[i].dtype()) * largest)
        << "result " << i << " " << y[i].text() << " of x " << shapes[0].text() << " " << name_of(dtype);
  }
}

TEST_F(CudaReduce, SumsDownColumnsOfAnyNumber) {
  const auto sums = [](const std::vector<Tensor>& x) { return std::vector<Tensor>{sum(x[0], {0})}; };
  for (DType t : {f32, bf16, f64})
    for (const Shape& s : {Shape{3, 5}, Shape{1, 40}, Shape{7, 384}, Shape{1000, 384}, Shape{333, 65},
                           Shape{100, 8}, Shape{20, 1000}, Shape{2000, 24}})
      expect_near({s}, t, 16, sums);
  expect_near({{130, 66}}, f32, 16, sums, View::transposed);
  expect_near({{130, 66}}, f32, 16, sums, View::sliced);
  expect_near({{20, 33, 48}}, f32, 16, [](const std::vector<Tensor>& x) {
    return std::vector<Tensor>{sum(x[0], {0, 1}), sum(x[0], {1}), max(x[0], {1})};
  });
}

TEST_F(CudaReduce, ReducesRowsOfEveryWidth) {
  const auto reductions = [](const std::vector<Tensor>& x) {
    return std::vector<Tensor>{
        sum(x[0], {-1}), mean(x[0], {-1}),      sum_squares(x[0], {-1}),       max(x[0], {-1}),
        min(x[0], {-1}), logsumexp(x[0], {-1}), cast(argmax(x[0], {-1}), f32), cast(argmin(x[0], {-1}), f32)};
  };
  for (DType t : {f32, bf16})
    for (std::int64_t n : {8, 500, 512, 516, 1024, 1032, 2056, 4096, 8192, 16384, 16392})
      expect_near({{n > 4096 ? 3 : 19, n}}, t, 64, reductions);
  for (DType t : {f16, f64}) expect_near({{19, 1040}}, t, 64, reductions);
  for (View v : {View::transposed, View::sliced}) expect_near({{19, 1040}}, f32, 64, reductions, v);
  expect_near({{3, 5, 1040}}, f32, 64,
              [&](const std::vector<Tensor>& x) { return reductions({x[0].transpose(0, 1)}); });
}

TEST_F(CudaReduce, FindsTheFirstExtremeAndNaN) {
  constexpr std::int64_t rows = 6, n = 2048;
  std::vector<float> values(rows * n, 0.f);
  const auto row = [&](std::int64_t r) { return values.data() + r * n; };
  row(1)[900] = row(1)[77] = std::numeric_limits<float>::quiet_NaN(), row(1)[3] = 5;
  std::fill_n(row(2), n, -std::numeric_limits<float>::infinity());
  row(3)[n - 1] = 1, row(3)[n - 2] = -1;
  row(4)[1500] = row(4)[1499] = row(4)[40] = 7, row(4)[1300] = row(4)[39] = -7;
  row(5)[n - 1] = std::numeric_limits<float>::quiet_NaN();
  for (DType t : {f32, bf16, f16, f64}) {
    Graph g;
    const Tensor x = cast(g.constant(Array::of({rows, n}, values)), t);
    const std::vector<Tensor> y{argmax(x, {1}), argmin(x, {1}), max(x, {1}), min(x, {1})};
    const auto expected = eval(y, {}, {.device = Device::cpu()}),
               got = eval(y, {}, {.device = Device::cuda()});
    for (std::size_t i = 0; i < y.size(); ++i) {
      const Vector a = doubles(expected[i]), b = doubles(got[i]);
      for (std::size_t e = 0; e < a.size(); ++e)
        EXPECT_TRUE(a[e] == b[e] || (a[e] != a[e] && b[e] != b[e]))
            << "result " << i << " of row " << e << " in " << name_of(t) << ": " << b[e] << ", not " << a[e];
    }
  }
}

TEST_F(CudaReduce, NormsRowsOfEveryWidth) {
  const auto norms = [](const std::vector<Tensor>& x) {
    const Tensor y = layer_norm(x[0], x[1], x[2]), r = rms_norm(x[0], x[1]);
    std::vector<Tensor> all{y, r};
    for (const Tensor& t : {y, r})
      for (const Tensor& z :
           gradients(weighted_sum(t), t.id() == y.id() ? x : std::vector<Tensor>{x[0], x[1]}))
        all.push_back(z);
    return all;
  };
  for (DType t : {f32, bf16})
    for (std::int64_t n : {8, 64, 200, 256, 264, 384, 512, 520, 768, 1000, 1024, 1032, 65}) {
      const std::int64_t rows = n == 384 ? 131 : 19;
      expect_near({{rows, n}, {n}, {n}}, t, 64, norms);
    }
  for (DType t : {f32, bf16})
    for (std::int64_t n : {2048, 4096, 4104, 8192}) expect_near({{5, n}, {n}, {n}}, t, 64, norms);
  expect_near({{37, 384}, {384}, {384}}, f16, 64, norms);
  expect_near({{9, 384}, {384}, {384}}, f64, 64, norms);
}

TEST_F(CudaReduce, SoftmaxesAndCrossEntropiesOfEveryWidth) {
  const auto softmaxes = [](const std::vector<Tensor>& x) {
    const Shape& shape = x[0].shape();
    std::vector<std::int64_t> classes;
    for (std::int64_t i = 0; i < shape[0]; ++i) classes.push_back(i % 3 == 2 ? -100 : i * 7919 % shape[1]);
    const Tensor targets = x[0].graph().constant(Array::of({shape[0]}, classes));
    std::vector<Tensor> all;
    for (const Tensor& y :
         {softmax(x[0]), log_softmax(x[0]), cross_entropy(x[0], targets, {.reduction = Reduction::none}),
          cross_entropy(x[0], cast(targets, i32), {.label_smoothing = 0.1})}) {
      all.push_back(y);
      all.push_back(gradients(weighted_sum(y), x)[0]);
    }
    return all;
  };
  for (DType t : {f32, bf16})
    for (std::int64_t n : {7, 8, 40, 256, 264, 500, 1024, 1032, 2048, 4096, 4104, 8192, 16384, 16392, 20001})
      expect_near({{n > 4104 ? 3 : 19, n}}, t, 64, softmaxes);
  for (DType t : {f16, f64}) expect_near({{19, 264}}, t, 64, softmaxes);
  for (View v : {View::transposed, View::sliced}) expect_near({{19, 264}}, f32, 64, softmaxes, v);
}

// Each team of threads processes several rows, both short and long ones.
TEST_F(CudaReduce, CrossEntropiesOfManyRows) {
  const auto losses = [](const std::vector<Tensor>& x) {
    const std::int64_t rows = x[0].shape()[0], n = x[0].shape()[1];
    std::vector<std::int64_t> classes;
    for (std::int64_t i = 0; i < rows; ++i) classes.push_back(i * 7919 % n);
    const Tensor y = cross_entropy(x[0], x[0].graph().constant(Array::of({rows}, classes)),
                                   {.reduction = Reduction::none});
    return std::vector<Tensor>{y, gradients(weighted_sum(y), x)[0]};
  };
  for (const Shape& shape : {Shape{700, 8}, Shape{150, 264}, Shape{40, 1001}, Shape{40, 2048}})
    expect_near({shape}, f32, 64, losses);
  expect_near({{150, 40}}, f32, 64, losses, View::transposed);
}

// Only the forward runs. The backward would also report invalid targets.
TEST_F(CudaReduce, CrossEntropyReportsInvalidTargets) {
  for (const DType wide : {i32, i64})
    for (const std::int64_t n : {8, 9, 264})  // rows that fit into registers, and longer rows
      for (const std::int64_t wrong : {n, std::int64_t{-1}}) {
        Graph g;
        const Given x = given(g, {19, n}, f32);
        std::vector<std::int64_t> classes(19, n - 1);
        classes[3] = -100, classes[13] = wrong;
        const Tensor targets = g.constant(Array::of({19}, classes).to(wide)),
                     y = cross_entropy(x.tensor, targets, {.reduction = Reduction::none});
        expect_error<Error>([&] { eval(y, {x.feed()}, {.device = Device::cuda()}); },
                            {"index " + std::to_string(wrong) + " at position 13 is out of range"});
      }
}

TEST_F(CudaReduce, RotatesRowsThatShareAPosition) {
  for (DType t : {f32, bf16})
    for (const bool interleaved : {false, true})
      for (const Shape& s : {Shape{2, 6, 9, 64}, Shape{1, 9, 64}, Shape{9, 48}, Shape{5, 3, 10}})
        expect_near({s}, t, 8, [&](const std::vector<Tensor>& x) {
          const std::int64_t n = s.back();
          std::vector<Tensor> all;
          for (const std::int64_t dims : {n, n / 4 * 2})
            for (const Tensor& y :
                 {rope(x[0], {}, {.dims = dims, .interleaved = interleaved, .start = 3}),
                  rope(x[0].transpose(0, -2), {}, {.dims = dims, .interleaved = interleaved})}) {
              all.push_back(y);
              all.push_back(gradients(weighted_sum(y), x)[0]);
            }
          return all;
        });
}

TEST_F(CudaReduce, UpdatesListsOfMixedTypes) {
  for (const double scale : {0.5, 0.0}) {
    ParameterList list;
    std::vector<Tensor> fetch, copies;
    for (const AdamWResults& r : adamw(list.with_copies(), 0.01, 3, scale)) {
      fetch.insert(fetch.end(), {r.p, r.m, r.v});
      if (r.copy.defined()) copies.insert(copies.end(), {r.copy, cast(r.p, r.copy.dtype())});
    }
    ASSERT_GE(copies.size(), 8u);
    const auto halves = eval(copies, list.feeds, {.device = Device::cuda()});
    for (std::size_t i = 0; i < copies.size(); i += 2)
      EXPECT_TRUE(halves[i].same_bits(halves[i + 1])) << "copy " << i / 2;
    const auto expected = eval(fetch, list.feeds, {.device = Device::cpu()}),
               got = eval(fetch, list.feeds, {.device = Device::cuda()});
    for (std::size_t i = 0; i < fetch.size(); ++i)
      EXPECT_TRUE(close(doubles(got[i]), doubles(expected[i]), 4 * rounding(fetch[i].dtype())))
          << "result " << i % 3 << " of parameter " << i / 3;
  }
}

TEST_F(CudaReduce, NormsListsInEveryRun) {
  ParameterList list;
  std::vector<Tensor> xs;
  for (const AdamWTensors& x : list.all)
    if (x.g.dtype() != f64) xs.push_back(x.g);
  const Tensor y = squared_norm(xs), wide = squared_norm({xs[0], list.all[9].g});
  const auto expected = eval({y, wide}, list.feeds, {.device = Device::cpu()});
  Program program = compile(list.g, {y, wide}, {.device = Device::cuda()});
  for (const Feed& feed : list.feeds)  // the list includes weights and moments; a norm does not read them
    if (program.reads(feed.input())) program.feed(feed);
  for (int run = 0; run < 3; ++run) {  // the count of finished blocks restarts at 0
    program.run();
    EXPECT_NEAR(program.fetch(y).at(0), expected[0].at(0), 1e-6 * expected[0].at(0));
    EXPECT_NEAR(program.fetch(wide).at(0), expected[1].at(0), 1e-13 * expected[1].at(0));
  }
}

}  // namespace
