// Tests norms of rows and their gradients on a GPU. Covers sums that are fused into a gradient's kernel, and
// rows at irregular distances in memory. Skipped if there is no GPU.
#include "backends/cuda/cuda.h"
#include "tests/support/by_rows.h"

namespace {

using namespace tg;
using namespace tg::testing;

class CudaNorm : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

// Some rows need one warp, others need several warps, and others are too long for registers.
struct Gradients {
  DType dtype;
  std::int64_t rows, n;
  bool centred;
  Array x = random_rows({rows, n}, dtype, 1), z = random_rows({rows, n}, dtype, 2),
        other = random_rows({rows, n}, dtype, 3), gain = random_rows({n}, dtype, 4),
        shift = random_rows({n}, dtype, 5);

  // z_x, z_w and, for layer_norm, z_b.
  Tensors record(Graph& g) const {
    Tensors in{g.constant(x), g.constant(gain)};
    if (centred) in.push_back(g.constant(shift));
    const Tensor y = centred ? layer_norm(in[0], in[1], in[2]) : rms_norm(in[0], in[1]);
    return gradients(sum(y * g.constant(z)), in);
  }
  std::pair<std::vector<Array>, std::string> run(Graph& g, const Tensors& results) const {
    Program p = compile(g, results, {.device = Device::cuda()});
    p.run();
    std::pair<std::vector<Array>, std::string> got;
    for (const Tensor& t : results) got.first.push_back(p.fetch(t));
    for (std::size_t step = 0; step < p.steps().size(); ++step) got.second += p.choice(step) + "\n";
    return got;
  }
};

std::vector<Array> values_of(Graph& g, const Tensors& results) {
  Program p = compile(g, results, {.device = Device::cuda()});
  p.run();
  std::vector<Array> got;
  for (const Tensor& t : results) got.push_back(p.fetch(t));
  return got;
}

TEST_F(CudaNorm, ASumFusedWithItsGradientMatchesASeparateStepBitwise) {
  for (const DType t : {f32, bf16, f16, f64})
    for (const auto& [rows, n] : {std::pair{1, 8}, {37, 72}, {600, 384}, {1100, 768}, {90, 1024}, {41, 4096}})
      for (const bool centred : {true, false}) {
        const Gradients c{t, rows, n, centred};
        SCOPED_TRACE(::testing::Message()
                     << name_of(t) << " " << rows << " × " << n << " centred " << centred);
        Graph apart, by_itself, together, kept;
        const Tensors alone = c.record(apart);
        const std::vector<Array> z = c.run(apart, alone).first;
        const Array expected =
            c.run(by_itself, {by_itself.constant(z[0]) + by_itself.constant(c.other)}).first[0];
        Tensors results = c.record(together);
        results[0] = results[0] + together.constant(c.other);
        const auto [values, choices] = c.run(together, results);
        EXPECT_NE(choices.find("with the sum after it, without z_x\ndone by the previous step\n"),
                  std::string::npos)
            << choices;
        EXPECT_TRUE(values[0].same_bits(expected));
        for (std::size_t i = 1; i < z.size(); ++i) EXPECT_TRUE(values[i].same_bits(z[i])) << i;
        // The gradient is stored if another step also reads it. The sum reuses the memory of `other`, because
        // no later step reads `other`.
        const auto columns = [](const Tensor& z_x, const Tensor& other) {
          return Tensors{sum(other + z_x, {0}), sum(z_x, {0})};
        };
        const auto other_of = [&](Graph& g) { return softmax(g.constant(c.other), -1); };
        const Tensor other = other_of(kept);  // recorded first: no step between gradient and sum
        const auto [with_z, of_kept] = c.run(kept, columns(c.record(kept)[0], other));
        EXPECT_NE(of_kept.find("with the sum after it\ndone by the previous step\n"), std::string::npos)
            << of_kept;
        Graph by_step;
        const std::vector<Array> both =
            c.run(by_step, columns(by_step.constant(z[0]), other_of(by_step))).first;
        EXPECT_TRUE(with_z[0].same_bits(both[0]));
        EXPECT_TRUE(with_z[1].same_bits(both[1]));
      }
}

TEST_F(CudaNorm, OtherSumsAreSeparateSteps) {
  const Gradients c{bf16, 37, 72, true};
  const auto is_separate = [&](auto&& f) {
    Graph g;
    const Tensors z = c.record(g);
    return c.run(g, {f(z[0], g.constant(c.other))}).second.find("with the sum after it") == std::string::npos;
  };
  EXPECT_FALSE(is_separate([](const Tensor& z, const Tensor& other) { return z + other; }));
  EXPECT_TRUE(is_separate([](const Tensor& z, const Tensor&) { return z + z; }));
  EXPECT_TRUE(is_separate([](const Tensor& z, const Tensor& other) { return z - other; }));
  EXPECT_TRUE(is_separate([](const Tensor& z, const Tensor& other) { return z + slice(other, 0, 0, 1); }));
  EXPECT_TRUE(is_separate([](const Tensor& z, const Tensor& other) { return z.to(f32) + other.to(f32); }));
}

// Tests sums over the rows of several norms. One kernel finishes all sums before a step reads the first sum.
TEST_F(CudaNorm, SumsOverRowsOfSeveralNormsMatchSeparateOnesBitwise) {
  for (const DType t : {f32, bf16})
    for (const bool read_at_once : {true, false}) {
      Graph g;
      Tensors together;
      std::vector<Array> expected;
      for (int i = 0; i < 20; ++i) {  // 40 sums: two launches
        const Gradients c{t, 7 + 5 * i, 8 + 16 * (i % 4), true};
        Graph alone;
        const std::vector<Array> z = c.run(alone, c.record(alone)).first;
        const Tensors here = c.record(g);
        for (std::size_t k = 1; k < here.size(); ++k) {
          together.push_back(read_at_once && i == 3 ? softmax(here[k], -1) : here[k]);
          expected.push_back(z[k]);
        }
      }
      const std::vector<Array> got = values_of(g, together);
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (read_at_once && i / 2 == 3) continue;
        EXPECT_TRUE(got[i].same_bits(expected[i])) << name_of(t) << " " << i;
      }
      if (!read_at_once) continue;
      for (std::size_t i = 6; i < 8; ++i) {
        Graph after;
        EXPECT_TRUE(got[i].same_bits(values_of(after, {softmax(after.constant(expected[i]), -1)})[0])) << i;
      }
    }
}

// The distance between rows varies, as in a slice of an axis between other axes. Tests such rows for x and
// for the addend of x's gradient.
TEST_F(CudaNorm, RowsMayBeUnevenlySpaced) {
  using Op = Tensor (*)(const Tensor&, const Tensor&);
  const std::pair<const char*, Op> ops[] = {
      {"layer_norm", [](const Tensor& x, const Tensor& w) { return layer_norm(x, w, w); }},
      {"rms_norm", [](const Tensor& x, const Tensor& w) { return rms_norm(x, w); }},
      {"softmax", [](const Tensor& x, const Tensor&) { return softmax(x, -1); }},
      {"log_softmax", [](const Tensor& x, const Tensor&) { return log_softmax(x, -1); }},
      {"logsumexp", [](const Tensor& x, const Tensor& w) { return logsumexp(x, {2}, true) * w; }}};
  for (const DType t : {f32, bf16})
    for (const std::int64_t n : {24, 72, 1000, 4104})
      for (const auto& [name, op] : ops)
        for (int uneven = 0; uneven < 4; ++uneven) {
          SCOPED_TRACE(::testing::Message() << name << " " << name_of(t) << " " << n << " " << uneven);
          const auto results = [&, op = op](bool in_place) {
            Graph g;
            const auto rows = [&](int bit, std::uint64_t seed) {
              const Tensor some = slice(g.constant(random_rows({3, 7, n}, t, seed)), 1, 1, 6);
              return in_place && uneven & bit ? some : contiguous(some);
            };
            const Tensor x = rows(1, 1), w = g.constant(random_rows({n}, t, 2)), z = rows(2, 3);
            const Tensor y = op(x, w);
            Tensors all = gradients(sum(y * z), {x});
            all.push_back(y);
            return values_of(g, all);
          };
          const std::vector<Array> got = results(true), expected = results(false);
          for (std::size_t r = 0; r < got.size(); ++r)
            for (std::int64_t i = 0; i < got[r].numel(); ++i)
              ASSERT_NEAR(got[r].at(i), expected[r].at(i),
                          (t == f32 ? 1e-5 : 2e-2) * std::max(1., std::abs(expected[r].at(i))))
                  << "result " << r << ", element " << i;
        }
}

// If no step reads a sum, it is not finished, because other values reuse its memory.
TEST_F(CudaNorm, UnreadSumsAreNotFinished) {
  const Gradients c{f32, 37, 64, true};
  Graph apart, g;
  const std::vector<Array> z = c.run(apart, c.record(apart)).first;
  const Tensors in{g.constant(c.x), g.constant(c.gain), g.constant(c.shift)};
  const Tensors all = gradients(sum(layer_norm(in[0], in[1], in[2]) * g.constant(c.z)), in);
  // z_b is not requested. Later values reuse its memory. These values are read after z_w.
  const auto values_from = [&](Graph& graph) {
    Tensors values;
    for (int i = 0; i < 40; ++i) values.push_back(softmax(graph.constant(c.gain) * i, -1));
    return values;
  };
  const Tensors later = values_from(g);
  const Tensor of_weights = softmax(all[1], -1);
  const std::vector<Array> got = values_of(g, {softmax(concat(later, 0), -1), of_weights});
  Graph alone, after;
  EXPECT_TRUE(got[0].same_bits(values_of(alone, {softmax(concat(values_from(alone), 0), -1)})[0]));
  EXPECT_TRUE(got[1].same_bits(values_of(after, {softmax(after.constant(z[1]), -1)})[0]));
}

}  // namespace
