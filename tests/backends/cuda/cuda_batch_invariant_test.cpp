// Tests CompileOptions::batch_invariant on a GPU. GEMMs are compared with the CPU. A row's result must be
// bitwise identical in a batch of one and in a larger batch, for any layout of the rows. Skipped if there is
// no GPU.
#include "backends/cuda/cuda.h"
#include "backends/cuda/runtime/written_memory.h"
#include "tests/support/by_rows.h"

namespace {

using namespace tg;
using namespace tg::testing;

class CudaBatchInvariant : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

struct Product {
  DType dtype;
  std::int64_t n, k;
  bool along_k = true;                                              // weights: [n, k] transposed, or [k, n]
  enum { nothing, bias, residual, computed, wide } adds = nothing;  // wide: results are f32
  std::int64_t heads = 0;                                           // if not 0, the weights have this axis
  std::int64_t most = 80;                                           // largest number of rows

  // If `spread` is set, rows of x are not aligned to 16 bytes.
  ByRows rows(Device device, bool spread = false) const {
    const auto shape = [&](std::int64_t rows, std::int64_t columns, bool rows_first = false) {
      return !heads       ? Shape{rows, columns}
             : rows_first ? Shape{rows, heads, columns}
                          : Shape{heads, rows, columns};
    };
    const Array w = random_rows(along_k ? shape(n, k) : shape(k, n), dtype, 2),
                b = random_rows({n}, dtype, 3);
    const auto f = [*this, w, b, spread](const Tensors& in) {
      Graph& g = in[0].graph();
      const auto by_head = [&](const Tensor& x) { return heads ? transpose(x, 0, 1) : x; };
      const Tensor x = by_head(spread ? slice(in[0], -1, 1, k + 1) : in[0]),
                   right = along_k ? transpose(g.constant(w), -2, -1) : g.constant(w);
      const Tensor y = adds == bias       ? linear(x, right, g.constant(b))
                       : adds == residual ? linear(x, right, in[1])
                       : adds == computed ? linear(x, right, relu(in[1]))  // a step computes it
                       : adds == wide     ? matmul_wide(x, right)
                                          : matmul(x, right);
      return Tensors{by_head(y)};
    };
    Array x = random_rows(shape(most, k, true), dtype, 1);
    if (spread) {  // each row follows an unused number
      const Array narrow = x;
      x = Array(shape(most, k + 1, true), dtype);
      const auto size = static_cast<std::int64_t>(size_of(dtype));
      for (std::int64_t row = 0; row < x.numel() / (k + 1); ++row)
        std::memcpy(x.raw() + (row * (k + 1) + 1) * size, narrow.raw() + row * k * size,
                    static_cast<std::size_t>(k * size));
    }
    return {{x, random_rows({most, n}, dtype, 4)}, f, device};
  }
};

void check(const Product& p) {
  SCOPED_TRACE(::testing::Message() << name_of(p.dtype) << " n " << p.n << " k " << p.k << " along k "
                                    << p.along_k << " adds " << p.adds << " heads " << p.heads);
  const ByRows rows = p.rows(Device::cuda());
  const std::int64_t most = rows.inputs[0].shape()[0];
  const Array batch = rows.of(0, most, 1)[0];
  EXPECT_TRUE(
      close(doubles(batch), doubles(p.rows(Device::cpu()).of(0, most, 1)[0]), 2 * rounding(p.dtype) + 1e-5));
  rows.check({1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 64, 65});
  EXPECT_TRUE(p.rows(Device::cuda(), true).of(3, 9, 1)[0].same_bits(part(batch, 3, 9))) << "spread";
}

// Returns the kernel of the first step, for example "sm_90: tensor cores, …".
std::string choice_of(const Product& p) {
  const ByRows rows = p.rows(Device::cuda());
  Graph g;
  const Tensor x = g.input("x", rows.inputs[0].shape(), p.dtype),
               d = g.input("d", rows.inputs[1].shape(), p.dtype);
  return compile(g, rows.f({x, d}), {.device = Device::cuda(), .batch_invariant = true}).choice(0);
}

TEST_F(CudaBatchInvariant, ProductsHaveAKernelIfWeightsAreAlignedTo16Bytes) {
  const auto choice = [](const Product& p) {
    const std::string all = choice_of(p);
    return all.substr(all.find(", ") + 2);  // after the architecture
  };
  const std::string tensors = "tensor cores, batch-invariant, 8 slices of k, weights along ",
                    plain = "plain multiply-adds, batch-invariant, 8 slices of k, weights along ",
                    any = "plain kernel for any strides";
  EXPECT_EQ(choice({bf16, 9, 24}).substr(0, tensors.size() + 1), tensors + "k");
  EXPECT_EQ(choice({f16, 16, 24, false}).substr(0, tensors.size() + 1), tensors + "n");
  EXPECT_EQ(choice({f16, 8704, 24, false}), tensors + "n, tiles of 64 rows and 128 outputs");
  EXPECT_EQ(choice({f32, 9, 28}), plain + "k");
  EXPECT_EQ(choice({f32, 12, 24, false}), plain + "n");
  EXPECT_EQ(choice({bf16, 9, 28}), any);
  EXPECT_EQ(choice({bf16, 9, 24, false}), any);
  EXPECT_EQ(choice({f64, 8, 24}), any);
}

TEST_F(CudaBatchInvariant, ProductsAgreeWithTheCpuAndRowsMatchBitwise) {
  for (const DType t : {bf16, f16, f32}) {
    check({t, 40, 328, true, Product::bias});
    check({t, 17, 64, true, Product::residual});  // one partial tile of outputs; fewer chunks than slices
    check({t, 17, 64});
    check({t, 40, 328, false, Product::residual});
    check({t, 72, 24, false, Product::bias});
    check({t, 40, 328, true, Product::wide});
    check({t, 72, 24, false, Product::wide});
    if (HasFatalFailure()) return;
  }
}

// Before the previous kernel ends, kernels read only constants. Afterward, they read computed operands.
TEST_F(CudaBatchInvariant, ProductsAddTheResultOfAStep) {
  for (const DType t : {bf16, f16, f32})
    for (const bool along_k : {true, false}) {
      const Product p{t, 24, 72, along_k, Product::computed};
      const Array got = p.rows(Device::cuda()).of(0, 80, 1)[0];
      EXPECT_TRUE(close(doubles(got), doubles(p.rows(Device::cpu()).of(0, 80, 1)[0]), 2 * rounding(t) + 1e-5))
          << name_of(t) << " along k " << along_k;
    }
}

// There are many rows. Each multiprocessor has enough tiles.
TEST_F(CudaBatchInvariant, ProductsOfManyRowsAndOutputsMatch) {
  for (const bool along_k : {true, false})
    Product{bf16, 4352, 360, along_k}.rows(Device::cuda()).check({9, 64});
  Product{bf16, 8704, 72}.rows(Device::cuda()).check({9, 64});
  Product{bf16, 8704, 72, false}.rows(Device::cuda()).check({9});
}

// Tests wgmma on Hopper with each tile size. Covers partial tiles of rows, and halves of k with different
// sizes.
TEST_F(CudaBatchInvariant, ProductsByWgmmaMatchBitwise) {
  if (choice_of({bf16, 8, 8}).find("sm_90") == std::string::npos) GTEST_SKIP() << "not Hopper";
  struct Case {
    std::int64_t m, n, k;
    std::string rows;
  };
  // A GPU has 114 to 132 multiprocessors. The emulator may have fewer. In that case, fewer outputs are used.
  const char* const few = std::getenv("TG_EMULATOR_SMS");
  const std::int64_t processors = few ? std::atoi(few) : 132;
  for (const auto& [m, usual_n, k, rows] : {Case{80, 2304, 328, "32"},
                                            {24, 4352, 1096, "32"},
                                            {40, 4352, 1096, "64"},
                                            {80, 2304, 1096, "96"},
                                            {120, 4360, 1096, "128"},
                                            {104, 8712, 72, "64"},
                                            {80, 8712, 72, "96"},
                                            {104, 8712, 1160, "128"}})
    for (const DType t : {bf16, f16}) {
      const std::int64_t n = usual_n * processors / 132 / 8 * 8;
      const Product p{t, n, k, true, Product::residual, 0, m};
      SCOPED_TRACE(::testing::Message() << name_of(t) << " m " << m << " n " << n << " k " << k);
      EXPECT_NE(choice_of(p).find("wgmma with tiles of " + rows + " rows and 64 outputs"), std::string::npos)
          << choice_of(p);
      const ByRows all = p.rows(Device::cuda());
      all.check({1, 16, m - 8});
      if (t == bf16) {
        EXPECT_TRUE(close(doubles(all.of(0, m, 1)[0]), doubles(p.rows(Device::cpu()).of(0, m, 1)[0]),
                          2 * rounding(t) + 1e-5));
      }
      if (HasFatalFailure()) return;
    }
}

// Covers more slices than pairs of chunks, slices whose sizes differ by one, and a last chunk that is partial
// or empty.
TEST_F(CudaBatchInvariant, ProductsOfUnequalSlicesMatch) {
  for (const DType t : {bf16, f16})
    for (const std::int64_t k : {104, 296, 776, 1160})
      Product{t, 200, k, true, Product::residual}.rows(Device::cuda()).check({1, 9, 17, 65});
}

// Records the time between two kernels. The second begins before the first has ended.
TEST_F(CudaBatchInvariant, StepsOfProductsCanBeTimed) {
  Graph g;
  Tensor x = g.constant(random_rows({20, 64}, bf16, 1));
  for (std::uint64_t layer = 0; layer < 3; ++layer)
    x = relu(linear(x, transpose(g.constant(random_rows({64, 64}, bf16, layer)), 0, 1)));
  Program p = compile(g, {x}, {.device = Device::cuda(), .batch_invariant = true});
  p.run();
  const Array expected = p.fetch(x);
  EXPECT_EQ(p.profile().size(), 6u);
  EXPECT_TRUE(p.fetch(x).same_bits(expected));
}

TEST(CudaWrittenMemory, CoversTheOutputsOfSteps) {
  std::byte memory[100];
  const auto arg = [&](std::ptrdiff_t first, std::int64_t count) {
    return Arg{u8, row_major({count}), memory + first};
  };
  std::vector<Step> steps(3);
  steps[0].out = {arg(50, 10)}, steps[1].out = {arg(10, 10), arg(20, 5)}, steps[2].out = {arg(52, 20)};
  steps[0].in = {arg(80, 10)};
  const cuda::WrittenMemory written(steps);
  for (const auto& [first, count] :
       {std::pair{0, 11}, {24, 1}, {15, 2}, {0, 100}, {60, 5}, {71, 29}, {24, 27}})
    EXPECT_TRUE(written.overlaps(arg(first, count))) << first;
  for (const auto& [first, count] : {std::pair{0, 10}, {25, 25}, {72, 28}, {80, 10}})
    EXPECT_FALSE(written.overlaps(arg(first, count))) << first;
  EXPECT_FALSE(cuda::WrittenMemory().overlaps(arg(0, 100)));
}

TEST_F(CudaBatchInvariant, ProductsOfHeadsMatch) {
  for (const DType t : {bf16, f32}) {
    check({t, 40, 64, true, Product::nothing, 3});
    check({t, 24, 40, false, Product::nothing, 3});
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaBatchInvariant, ProductsThatTheKernelRejectsMatch) {
  check({f64, 9, 40});
  check({bf16, 9, 21});
  check({f32, 9, 24, false});
}

TEST_F(CudaBatchInvariant, OpsOnRowsMatchBitwise) {
  for (const DType t : {f32, bf16})
    for (const std::int64_t n : {34, 40}) ops_on_rows(t, n, Device::cuda()).check({1, 9});
}

// Some rows need one warp, others need several warps. Some rows have fewer elements than threads.
TEST_F(CudaBatchInvariant, NormsAgreeWithTheCpu) {
  for (const DType t : {f32, bf16})
    for (const std::int64_t n : {40, 768, 4096}) {
      Graph g;
      const Array rows = random_rows({5, n}, t, 1);
      const Tensor x = g.input("x", rows.shape(), t), gain = g.constant(random_rows({n}, t, 2)),
                   shift = g.constant(random_rows({n}, t, 3));
      for (const Tensor& y : {layer_norm(x, gain, shift), layer_norm(x, gain, {}), rms_norm(x, gain)}) {
        const std::vector<Feed> feeds{{x, rows}};
        const std::vector<double> got = doubles(
                                      eval(y, feeds, {.device = Device::cuda(), .batch_invariant = true})),
                                  expected = doubles(eval(y, feeds));
        for (std::size_t i = 0; i < got.size(); ++i)
          ASSERT_NEAR(got[i], expected[i], (t == f32 ? 2e-6 : 8e-3) * (1 + std::abs(expected[i])))
              << name_of(t) << " n " << n << " element " << i;
      }
    }
}

// Ops that are fused into a GEMM's kernel must be bitwise identical to separate steps.
struct Neighbours {
  DType dtype;
  std::int64_t m;
  bool along_k = true, is_tanh = true;
  const std::int64_t k = 72, n = 40;

  Array w = random_rows(along_k ? Shape{n, k} : Shape{k, n}, dtype, 1), x = random_rows({m, k}, dtype, 2),
        bias = random_rows({n}, dtype, 3), residual = random_rows({m, n}, dtype, 4);

  Tensor weights(Graph& g) const { return along_k ? transpose(g.constant(w), 0, 1) : g.constant(w); }
  Tensor gelu_of(const Tensor& h) const { return is_tanh ? gelu_tanh(h) : gelu(h); }

  std::vector<Array> run(Graph& g, const std::vector<Tensor>& results, std::vector<std::string> steps) const {
    Program p = compile(g, results, {.device = Device::cuda(), .batch_invariant = true});
    std::vector<Array> values;
    p.run();
    for (const Tensor& t : results) values.push_back(p.fetch(t));
    for (std::size_t i = 0; i < steps.size(); ++i)
      EXPECT_NE(p.choice(i).find(steps[i]), std::string::npos) << "step " << i << ": " << p.choice(i);
    return values;
  }
  // Uses separate steps. Each step has its own program.
  Array product(const Array& left, const Array& added) const {
    Graph g;
    return run(g, {linear(g.constant(left), weights(g), g.constant(added))}, {})[0];
  }
  Array gelu_alone(const Array& h) const {
    Graph g;
    return run(g, {gelu_of(g.constant(h))}, {})[0];
  }
  Array sum_alone() const {
    Graph g;
    return run(g, {g.constant(residual) + g.constant(bias)}, {})[0];
  }
};

TEST_F(CudaBatchInvariant, GeluFusedIntoAProductMatchesASeparateStepBitwise) {
  for (const DType t : {bf16, f16, f32})
    for (const std::int64_t m : {1, 9, 80})
      for (const bool is_tanh : {true, false}) {
        const Neighbours c{t, m, m != 9, is_tanh};
        const Array h = c.product(c.x, c.bias), expected = c.gelu_alone(h);
        const std::string name = is_tanh ? ", with gelu_tanh" : ", with gelu";
        Graph alone, both;
        const auto product = [&](Graph& g) {
          return linear(g.constant(c.x), c.weights(g), g.constant(c.bias));
        };
        EXPECT_TRUE(
            c.run(alone, {c.gelu_of(product(alone))}, {name, "done by the previous step"})[0].same_bits(
                expected));
        const Tensor kept = product(both);
        const auto got = c.run(both, {kept, c.gelu_of(kept)}, {name, "done by the previous step"});
        EXPECT_TRUE(got[0].same_bits(h));
        EXPECT_TRUE(got[1].same_bits(expected));
      }
}

TEST_F(CudaBatchInvariant, ASumFusedIntoAProductMatchesToo) {
  for (const DType t : {bf16, f16, f32})
    for (const std::int64_t m : {1, 9, 80}) {
      const Neighbours c{t, m, m != 9};
      const Array sum = c.sum_alone(), expected = c.product(c.x, sum);
      const auto record = [&](Graph& g, bool keeps) {
        const Tensor s = g.constant(c.residual) + g.constant(c.bias),
                     y = linear(g.constant(c.x), c.weights(g), s);
        const auto got = c.run(g, keeps ? Tensors{y, s} : Tensors{y},
                               {"done by the next step", ", with the sum that is added"});
        EXPECT_TRUE(got[0].same_bits(expected));
        if (keeps) {
          EXPECT_TRUE(got[1].same_bits(sum));
        }
      };
      Graph alone, both;
      record(alone, false), record(both, true);
      Graph all;  // before and after
      const Tensor y = c.gelu_of(
          linear(all.constant(c.x), c.weights(all), all.constant(c.residual) + all.constant(c.bias)));
      EXPECT_TRUE(c.run(all, {y},
                        {"done by the next step", ", with the sum that is added, with gelu_tanh",
                         "done by the previous step"})[0]
                      .same_bits(c.gelu_alone(expected)));
    }
}

// Tests a GEMM of one row that is fused with the row's norm. With 2,304 outputs, each block computes 32. With
// 40 outputs, each block computes 16. In a row of 2,040 numbers, nearly every thread has one pack. The other
// threads have zeros. In a row of 72 numbers, nine threads have one pack each.
struct NormOfRow {
  DType dtype;
  std::int64_t k, n;
  enum { layer, layer_without_bias, layer_without_weight, rms } norm = layer;
  Array w = random_rows({n, k}, dtype, 1), x = random_rows({1, k}, dtype, 2),
        gain = random_rows({k}, dtype, 3), shift = random_rows({k}, dtype, 4),
        bias = random_rows({n}, dtype, 5);

  Tensor norm_of(const Tensor& t) const {
    Graph& g = t.graph();
    switch (norm) {
      case layer:
        return layer_norm(t, g.constant(gain), g.constant(shift));
      case layer_without_bias:
        return layer_norm(t, g.constant(gain), {});
      case layer_without_weight:
        return layer_norm(t, {}, {});
      default:
        return rms_norm(t, g.constant(gain));
    }
  }
  Tensor product_of(const Tensor& t) const {
    Graph& g = t.graph();
    return linear(t, transpose(g.constant(w), 0, 1), g.constant(bias));
  }
  std::pair<std::vector<Array>, std::string> run(Graph& g, const Tensors& results) const {
    Program p = compile(g, results, {.device = Device::cuda(), .batch_invariant = true});
    p.run();
    std::pair<std::vector<Array>, std::string> got;
    for (const Tensor& t : results) got.first.push_back(p.fetch(t));
    for (std::size_t step = 0; step < p.steps().size(); ++step) got.second += p.choice(step) + "\n";
    return got;
  }
};

TEST_F(CudaBatchInvariant, ANormOfOneRowMatchesASeparateStepBitwise) {
  for (const DType t : {bf16, f16})
    for (const auto& [k, n] : {std::pair{72, 40}, {768, 2304}, {2040, 40}})
      for (const auto norm : {NormOfRow::layer, NormOfRow::layer_without_bias,
                              NormOfRow::layer_without_weight, NormOfRow::rms}) {
        const NormOfRow c{t, k, n, norm};
        SCOPED_TRACE(::testing::Message() << name_of(t) << " k " << k << " n " << n << " norm " << norm);
        Graph first, second, both, kept, all;
        const Array normed = c.run(first, {c.norm_of(first.constant(c.x))}).first[0],
                    expected = c.run(second, {c.product_of(second.constant(normed))}).first[0];
        const auto [values, choices] = c.run(both, {c.product_of(c.norm_of(both.constant(c.x)))});
        EXPECT_EQ(choices.substr(0, 21), "done by the next step") << choices;
        EXPECT_NE(choices.find(", with the norm of its row\n"), std::string::npos) << choices;
        EXPECT_TRUE(values[0].same_bits(expected));
        const Tensor y = c.norm_of(kept.constant(c.x));
        const auto [with_y, of_kept] = c.run(kept, {c.product_of(y), y});
        EXPECT_NE(of_kept.find(", with the norm of its row\n"), std::string::npos) << of_kept;
        EXPECT_TRUE(with_y[0].same_bits(expected));
        EXPECT_TRUE(with_y[1].same_bits(normed));
        Graph gelu;
        const auto [after, of_all] = c.run(all, {gelu_tanh(c.product_of(c.norm_of(all.constant(c.x))))});
        EXPECT_NE(of_all.find(", with the norm of its row, with gelu_tanh\n"), std::string::npos) << of_all;
        EXPECT_TRUE(after[0].same_bits(c.run(gelu, {gelu_tanh(gelu.constant(expected))}).first[0]));
      }
}

// A norm must stay a separate step if there are several rows, long rows or more blocks than can run at the
// same time. The same applies if its result replaces its operand.
TEST_F(CudaBatchInvariant, OtherNormsAreSeparateSteps) {
  const auto is_separate = [](const NormOfRow& c, const Array& x) {
    Graph g;
    return c.run(g, {c.product_of(c.norm_of(g.constant(x)))}).second.find("norm of its row") ==
           std::string::npos;
  };
  const NormOfRow usual{bf16, 72, 40};
  EXPECT_FALSE(is_separate(usual, usual.x));
  EXPECT_TRUE(is_separate(usual, random_rows({2, 72}, bf16, 1)));
  for (const NormOfRow& c : {NormOfRow{f32, 72, 40}, {bf16, 2056, 40}, {bf16, 72, 50304}})
    EXPECT_TRUE(is_separate(c, c.x)) << name_of(c.dtype) << " k " << c.k << " n " << c.n;
  Graph g;
  const auto [values, choices] = usual.run(g, {usual.product_of(usual.norm_of(relu(g.constant(usual.x))))});
  Graph by_step, after;
  const Array normed = usual.run(by_step, {usual.norm_of(relu(by_step.constant(usual.x)))}).first[0];
  EXPECT_TRUE(values[0].same_bits(usual.run(after, {usual.product_of(after.constant(normed))}).first[0]))
      << choices;
}

// If there are few rows, Hopper uses the same kernel without batch_invariant. So results are bitwise
// identical.
TEST_F(CudaBatchInvariant, ProductsOfFewRowsUseThisKernelOnHopperByDefault) {
  for (const std::int64_t m : {1, 64, 256, 257}) {
    const Neighbours c{bf16, m, true};
    const auto run = [&](bool batch_invariant) {
      Graph g;
      const Tensor y =
          c.gelu_of(linear(g.constant(c.x), c.weights(g), g.constant(c.residual) + g.constant(c.bias)));
      Program p = compile(g, {y}, {.device = Device::cuda(), .batch_invariant = batch_invariant});
      p.run();
      std::string choices;
      for (std::size_t step = 0; step < p.steps().size(); ++step) choices += p.choice(step) + "\n";
      return std::pair(choices, p.fetch(y));
    };
    const auto [asked, expected] = run(true);
    const auto [choices, y] = run(false);
    if (asked.find("sm_90") == std::string::npos) GTEST_SKIP() << "not Hopper: " << asked;
    EXPECT_EQ(choices == asked, m <= 256) << m << ": " << choices;
    if (m <= 256) {
      EXPECT_TRUE(y.same_bits(expected)) << m;
    }
  }
}

// Each sequence has a single token, so this token attends only to itself.
TEST_F(CudaBatchInvariant, SequenceLogitsMatchInAnyBatch) {
  for (const ModelKind& kind : model_kinds()) {
    SCOPED_TRACE(kind.name);
    nn::Params params(1, f32, Device::cuda());
    texts_of(nn::Model(params, kind.config), nn::Precision::bf16, 1, Device::cuda()).check({1, 17});
  }
}

}  // namespace
