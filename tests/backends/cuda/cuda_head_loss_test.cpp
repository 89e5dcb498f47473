// linear_cross_entropy on a GPU against the CPU in f64: on Hopper, in bf16, by kernels without a pass over
// the logits. Skipped where there is no GPU.
#include <tilegrad/ops/linear_cross_entropy.h>
#include "backends/cuda/cuda.h"
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

class CudaHeadLoss : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

struct Sizes {
  std::int64_t n, c, V;
};

// A head with its loss, of each row, and its gradients.
struct Head {
  Sizes size;
  DType dtype;
  LinearCrossEntropyOptions options;
  Array x, w;  // [n, c], [V, c]
  std::vector<std::int32_t> targets;

  Head(Sizes s, DType t, LinearCrossEntropyOptions o, double spread = 1) : size(s), dtype(t), options(o) {
    Vector of_x = random_vector(s.n * s.c, 1), of_w = random_vector(s.V * s.c, 2);
    for (double& v : of_w) v *= spread;
    x = Array::of({s.n, s.c}, of_x).to(t), w = Array::of({s.V, s.c}, of_w).to(t);
    for (std::int64_t r = 0; r < s.n; ++r)
      targets.push_back(static_cast<std::int32_t>(r % 7 == 5 ? -100 : r * 7919 % s.V));
  }

  // Loss [n], z_x and z_w of Σ loss ⊛ (1 + row / n), of rows first … last − 1.
  std::vector<Array> run(Device device, DType in, std::int64_t first, std::int64_t last) const {
    Graph g;
    const Tensor xs = g.input("x", {last - first, size.c}, in), ws = g.input("w", {size.V, size.c}, in),
                 t = g.input("t", {last - first}, i32);
    const Tensor loss = linear_cross_entropy(xs, transpose(ws, 0, 1), t, options);
    const Tensor weight =
        1 + cast(arange(g, static_cast<double>(first), static_cast<double>(last)), loss.dtype()) *
                (1. / static_cast<double>(size.n));
    std::vector<Tensor> results{loss};
    for (const Tensor& z : gradients(sum(loss * weight), {xs, ws})) results.push_back(z);
    const Vector all = doubles(x);
    const Vector some(all.begin() + first * size.c, all.begin() + last * size.c);
    const std::vector<std::int32_t> of_some(targets.begin() + first, targets.begin() + last);
    return eval(results, {{xs, Array::of({last - first, size.c}, some).to(in)}, {ws, w.to(in)}, {t, of_some}},
                {.device = device});
  }
  std::vector<Array> run(Device device, DType in) const { return run(device, in, 0, size.n); }

  void expect_agreement() const {
    const auto expected = run(Device::cpu(), f64), got = run(Device::cuda(), dtype);
    // Logits are not rounded where the product leaves exponentials, else to the dtype: of numbers up to 32.
    EXPECT_TRUE(close(doubles(got[0]), doubles(expected[0]), 32 * rounding(dtype))) << "loss";
    // An error of a logit is a relative error of its probability.
    const double bound = (dtype == f32 ? 32 : 4) * rounding(dtype);
    EXPECT_LT(difference(got[1], expected[1]), bound) << "z_x";
    EXPECT_LT(difference(got[2], expected[2]), bound) << "z_w";
  }
  // |a − b| / |b|
  static double difference(const Array& a, const Array& b) {
    const Vector x = doubles(a), y = doubles(b);
    double apart = 0, all = 0;
    for (std::size_t i = 0; i < x.size(); ++i) apart += (x[i] - y[i]) * (x[i] - y[i]), all += y[i] * y[i];
    return std::sqrt(apart / all);
  }
};

constexpr LinearCrossEntropyOptions of_rows{.reduction = Reduction::none};
// Rows and columns that fill no tile; more tiles than a block; one tile.
constexpr Sizes some_sizes[] = {{77, 72, 1096}, {300, 136, 2048}, {5, 8, 1024}};

TEST_F(CudaHeadLoss, AgreesInEveryTypeAndSize) {
  for (const Sizes& s : some_sizes)
    for (DType t : {bf16, f16, f32}) Head(s, t, of_rows).expect_agreement();
  Head({40, 24, 1001}, bf16, of_rows).expect_agreement();   // rows of G that are no multiple of 16 bytes
  Head({40, 24, 20001}, bf16, of_rows).expect_agreement();  // and rows that registers do not hold
}

TEST_F(CudaHeadLoss, SmoothsAndAddsAZLoss) {
  LinearCrossEntropyOptions o = of_rows;
  o.label_smoothing = 0.1, o.z_loss = 0.01;
  for (DType t : {bf16, f32}) Head(some_sizes[0], t, o).expect_agreement();
}

// Losses from 0 to beyond 88 nats, where exp of a logit less the target's overflows in f32.
TEST_F(CudaHeadLoss, ComputesRowsOfLargeLossExactly) {
  Head head(some_sizes[1], bf16, of_rows, 5);
  const Vector losses = doubles(head.run(Device::cpu(), f64)[0]);
  EXPECT_GT(*std::max_element(losses.begin(), losses.end()), 100);
  EXPECT_GT(std::count_if(losses.begin(), losses.end(), [](double x) { return x > 0 && x < 44; }), 10);
  const auto expected = head.run(Device::cpu(), f64), got = head.run(Device::cuda(), bf16);
  EXPECT_TRUE(close(doubles(got[0]), losses, 4 * rounding(bf16)));
  EXPECT_LT(Head::difference(got[1], expected[1]), 4 * rounding(bf16));
  EXPECT_LT(Head::difference(got[2], expected[2]), 4 * rounding(bf16));
}

// A row has the same bits in any company, also where others of its tile are computed again.
TEST_F(CudaHeadLoss, GivesTheSameBitsInAnyChunks) {
  const Head head(some_sizes[1], bf16, of_rows, 5);
  const auto all = head.run(Device::cuda(), bf16);
  const Vector loss = doubles(all[0]), z_x = doubles(all[1]);
  const std::int64_t n = head.size.n;
  for (std::int64_t step : {1, 37, 128})
    for (std::int64_t first = 0; first < n; first += step * (step == 1 ? 29 : 1)) {
      const std::int64_t last = std::min(n, first + step);
      const auto part = head.run(Device::cuda(), bf16, first, last);
      EXPECT_EQ(doubles(part[0]), Vector(loss.begin() + first, loss.begin() + last)) << first;
    }
  const auto again = head.run(Device::cuda(), bf16);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(again[i].same_bits(all[i])) << i;
}

TEST_F(CudaHeadLoss, EndsTheRunAtATargetThatIsNoClass) {
  for (DType t : {bf16, f32}) {
    Head head(some_sizes[0], t, of_rows);
    head.targets[70] = 1096;
    expect_error<Error>([&] { head.run(Device::cuda(), t); },
                        {"[linear_cross_entropy] index 1096 at position 70 is out of range"});
  }
}

}  // namespace
