// Compares linear_cross_entropy on a GPU with the CPU in f64. On Hopper, its bf16 kernels need no separate
// pass over the logits. Skipped if there is no GPU.
#include <tilegrad/ops/linear_cross_entropy.h>
#include "backends/cuda/cuda.h"
#include "ops/matmul_in_units.h"
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

// A language-model head, the loss of each row, and the gradients.
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

  // Computes the loss [n], z_x and z_w for rows first … last − 1. The gradients are of Σ loss ⊛ (1 + row /
  // n).
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
    // If the GEMM writes exponentials, logits of magnitude up to 32 are not rounded. Otherwise all logits are
    // rounded to the dtype.
    EXPECT_TRUE(close(doubles(got[0]), doubles(expected[0]), 32 * rounding(dtype))) << "loss";
    // An absolute error in a logit causes a relative error of the same size in the probability.
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
// Covers partial tiles of rows and columns. Covers blocks with several tiles, and a single tile.
constexpr Sizes some_sizes[] = {{77, 72, 1096}, {300, 136, 2048}, {5, 8, 1024}};

TEST_F(CudaHeadLoss, AgreesInEveryTypeAndSize) {
  for (const Sizes& s : some_sizes)
    for (DType t : {bf16, f16, f32}) Head(s, t, of_rows).expect_agreement();
  Head({40, 24, 1001}, bf16, of_rows).expect_agreement();   // the row size of G is not a multiple of 16 bytes
  Head({40, 24, 20001}, bf16, of_rows).expect_agreement();  // rows that do not fit into registers
}

TEST_F(CudaHeadLoss, SupportsLabelSmoothingAndZLoss) {
  LinearCrossEntropyOptions o = of_rows;
  o.label_smoothing = 0.1, o.z_loss = 0.01;
  for (DType t : {bf16, f32}) Head(some_sizes[0], t, o).expect_agreement();
}

// Losses range from 0 to more than 88 nats. Above 88 nats, exp(logit − target logit) overflows in f32.
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

// On Hopper, the 128 rows of a pair of tiles are recomputed together. Large losses are only in the first
// pair, only in a later pair, or in several pairs.
TEST_F(CudaHeadLoss, ComputesRowsOfLargeLossExactlyInAnyTile) {
  for (const std::vector<std::int64_t>& large : {std::vector<std::int64_t>{3}, {130}, {127, 128, 256}}) {
    SCOPED_TRACE(::testing::PrintToString(large));
    Head head({260, 24, 1024}, bf16, of_rows);
    Vector x = doubles(head.x);
    for (const std::int64_t r : large)
      for (std::int64_t e = 0; e < head.size.c; ++e) x[static_cast<std::size_t>(r * head.size.c + e)] *= 60;
    head.x = Array::of({head.size.n, head.size.c}, x).to(bf16);
    const auto expected = head.run(Device::cpu(), f64), got = head.run(Device::cuda(), bf16);
    const Vector losses = doubles(expected[0]);
    for (std::int64_t r = 0; r < head.size.n; ++r)
      EXPECT_EQ(losses[static_cast<std::size_t>(r)] > 100, std::ranges::count(large, r) > 0) << r;
    EXPECT_TRUE(close(doubles(got[0]), losses, 4 * rounding(bf16)));
    EXPECT_LT(Head::difference(got[1], expected[1]), 4 * rounding(bf16));
    EXPECT_LT(Head::difference(got[2], expected[2]), 4 * rounding(bf16));
  }
}

// Losses and gradients are computed in chunks. A chunk has one unit, several units, a partial unit or all
// rows. On Hopper, the GEMM adds in order along k. On other GPUs, or for operands that are not aligned to 16
// bytes, it adds unit by unit.
TEST_F(CudaHeadLoss, AnyChunksMatchBitwise) {
  struct Case {
    Sizes size;
    DType dtype;
    bool tf32;
  };
#ifdef TG_RACE_RUNS  // few units on the emulator
  const Case cases[] = {{{200, 24, 1032}, bf16, false},
                        {{140, 24, 1032}, f16, false},
                        {{140, 24, 264}, f32, false},
                        {{140, 20, 1030}, bf16, false}};
  const std::vector<std::int64_t> chunk_sizes{1};
#else
  const Case cases[] = {
      {{303, 72, 1096}, bf16, false}, {{303, 72, 1096}, f16, false},    {{303, 72, 1096}, f32, false},
      {{303, 72, 1096}, f32, true},   {{300, 28, 1030}, bf16, false},   {{200, 264, 1032}, bf16, false},
      {{4321, 768, 8192}, f32, true}, {{4321, 768, 8192}, bf16, false}, {{4321, 770, 8190}, f16, false}};
  const std::vector<std::int64_t> chunk_sizes{1, 100, 130, 192};
#endif
  for (const Case& c : cases)
    for (const bool is_tied : {true, false}) {
      LinearCrossEntropyOptions o{.label_smoothing = 0.1, .z_loss = 0.01};
      if (c.tf32) o.reduction = Reduction::sum;
      const Head head(c.size, c.dtype, o);
      const std::int64_t unit = c.size.n > 1000 ? 512 : 64;
      const auto run = [&](std::int64_t of_unit, std::int64_t chunk) {
        Graph g;
        const auto [n, width, classes] = c.size;
        const Tensor xs = g.input("x", {n, width}, c.dtype), table = g.input("w", {classes, width}, c.dtype),
                     t = g.input("t", {n}, i32);
        Tensor w = transpose(table, 0, 1);
        if (!is_tied) w = contiguous(w);
        LinearCrossEntropyOptions in_chunks = o;
        in_chunks.unit_rows = of_unit, in_chunks.chunk_rows = chunk;
        const Tensor loss = linear_cross_entropy(xs, w, t, in_chunks);
        std::vector<Tensor> results{loss};
        for (const Tensor& z : gradients(loss, {xs, w})) results.push_back(z);
        return eval(results, {{xs, head.x}, {table, head.w}, {t, head.targets}},
                    {.device = Device::cuda(), .tf32 = c.tf32});
      };
      const auto whole = run(unit, 0);
      for (const std::int64_t chunk : chunk_sizes) {
        const auto parts = run(unit, chunk * unit / 64);
        for (std::size_t i = 0; i < whole.size(); ++i)
          EXPECT_TRUE(parts[i].same_bits(whole[i]))
              << name_of(c.dtype) << (c.tf32 ? " TF32" : "") << " c " << c.size.c << (is_tied ? " tied" : "")
              << " chunk " << chunk << " result " << i;
      }
      const auto plain = run(1 << 20, 0);  // without units
      for (std::size_t i : {1u, 2u})
        EXPECT_LT(Head::difference(whole[i], plain[i]),
                  (c.tf32 ? 0x1p-10 : (c.dtype == f32 ? 32 : 4) * rounding(c.dtype)))
            << i;
    }
}

// Compares GEMMs with f64, for any k, any tiles and any operand layout. Each GEMM runs once as a whole and
// once in two parts.
TEST_F(CudaHeadLoss, MultipliesInUnits) {
  struct Case {
    std::int64_t m, n, k;
  };
#ifdef TG_RACE_RUNS  // emulator; on one multiprocessor, the first GEMM has tiles of 256 columns
  const std::vector<Case> cases{{130, 200, 64}, {280, 392, 136}};
  const std::vector<DType> dtypes{bf16};
#else
  const std::vector<Case> cases{
      {130, 200, 64}, {300, 520, 200}, {8, 8, 8}, {72, 1544, 136}, {16896, 256, 200}};
  const std::vector<DType> dtypes{bf16, f16};
#endif
  for (const Case& c : cases)
    for (DType dtype : dtypes)
      for (const bool a_across : {true, false})
        for (const bool b_across : {true, false}) {
          Graph g;
          const auto matrix = [&](const char* name, std::int64_t rows, std::int64_t columns, bool across,
                                  std::uint64_t seed) {
            const Shape shape = across ? Shape{columns, rows} : Shape{rows, columns};
            const Tensor x = g.input(name, shape, dtype);
            return std::pair(across ? transpose(x, 0, 1) : x,
                             Feed(x, Array::of(shape, random_vector(rows * columns, seed)).to(dtype)));
          };
          // The operands are contiguous across k: [k, m] and [k, n] in memory.
          const auto [a, of_a] = matrix("a", c.m, c.k, a_across, 1);
          const auto [b, of_b] = matrix("b", c.k, c.n, !b_across, 2);
          const std::int64_t half = c.k > 64 ? 64 : 0;
          const Tensor rows = product_in_units_of_rows(a, b, 64), all = product_in_units_of_k(a, b, {}, 64);
          Tensor sum;
          for (const auto& [from, to] : {std::pair{std::int64_t{0}, half}, {half, c.k}})
            if (to > from) sum = product_in_units_of_k(slice(a, 1, from, to), slice(b, 0, from, to), sum, 64);
          const std::vector<Tensor> results{rows, all, sum, matmul(cast(a, f64), cast(b, f64))};
          const auto v = eval(results, {of_a, of_b}, {.device = Device::cuda()});
          SCOPED_TRACE(std::string(name_of(dtype)) + " " + std::to_string(c.m) + " × " + std::to_string(c.n) +
                       " × " + std::to_string(c.k) + (a_across ? ", a across" : "") +
                       (b_across ? ", b across" : ""));
          EXPECT_TRUE(v[2].same_bits(v[1]));
          EXPECT_LT(Head::difference(v[1], v[3]), 1e-6);
          EXPECT_LT(Head::difference(v[0], v[3]), rounding(dtype));
        }
}

// A row is bitwise independent of the other rows, even if other rows in the same tile are recomputed.
TEST_F(CudaHeadLoss, RowsMatchBitwiseInAnyBatch) {
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

TEST_F(CudaHeadLoss, AnInvalidTargetEndsTheRun) {
  for (DType t : {bf16, f32}) {
    Head head(some_sizes[0], t, of_rows);
    head.targets[70] = 1096;
    expect_error<Error>([&] { head.run(Device::cuda(), t); },
                        {"[linear_cross_entropy] index 1096 at position 70 is out of range"});
  }
}

}  // namespace
