// Tests RoPE on a GPU. Covers a kernel with one RoPE op, a kernel with two, and RoPE inside attention's
// kernels. Results must be bitwise identical to programs with one op each. Skipped if there is no GPU.
#include <cmath>

#include "backends/cuda/cuda.h"
#include "tests/support/normal_array.h"
#include "tests/support/op_testing.h"

namespace tg {
namespace {

using namespace testing;

class CudaRope : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

bool is_hopper() {
  Graph g;
  const Tensor x = g.input("x", {1, 2, 80, 64}, bf16);
  const Program p = compile(g, {flash_attn(x, x, x).o}, {.device = Device::cuda()});
  return p.choice(0).find("wgmma") != std::string::npos;
}

struct Ran {
  std::vector<Array> results;
  std::vector<std::string> choices;  // kernels of RoPE and attention steps, in order
};
Ran run(Graph& g, const std::vector<Tensor>& fetch, const std::vector<std::pair<Tensor, Array>>& feeds,
        bool batch_invariant = false) {
  Program p = compile(g, fetch, {.device = Device::cuda(), .batch_invariant = batch_invariant});
  for (const auto& [x, values] : feeds)
    if (p.reads(x)) p.feed({x, values});
  p.run();
  Ran ran;
  for (const Tensor& t : fetch) ran.results.push_back(p.fetch(t));
  for (std::size_t s = 0; s < p.steps().size(); ++s)
    if (const std::string& op = p.steps()[s].op->name; op == "rope" || op.starts_with("flash_attn"))
      ran.choices.push_back(op + ": " + p.choice(s));
  return ran;
}

// Tests forward and backward attention of rotated queries and keys. Operands are views of [B, L, H, d], the
// layout of projections.
struct Case {
  std::int64_t B = 2, H = 2, Hk = 2, L = 32, T = 32, d = 16, dv = 16;
  RopeOptions of_q = {}, of_k = {};
  AttentionOptions options = {.causal = true};
  DType dtype = bf16;
  bool rotates_k = true, given = false;  // positions
  bool reads_gradients = false;          // also fetches the gradients of rotated queries and keys

  Shape shape(std::int64_t heads, std::int64_t rows, std::int64_t size) const {
    return {B, rows, heads, size};
  }
  std::vector<Array> operands() const {
    return {normal(shape(H, L, d), dtype, 1), normal(shape(Hk, T, d), dtype, 2),
            normal(shape(Hk, T, dv), dtype, 3), normal({B, H, L, dv}, dtype, 4)};
  }
  Tensor rotated(const Tensor& x, const RopeOptions& o) const {
    if (!given) return rope(x, {}, o);
    return rope(x, arange(x.graph(), 3, 3 + static_cast<double>(x.size(2)), 1, i32), o);
  }

  // Computes o, z_q, z_k and z_v in one program.
  Ran at_once() const {
    Graph g;
    const std::vector<Array> x = operands();
    const Tensor q = g.input("q", x[0].shape(), dtype), k = g.input("k", x[1].shape(), dtype),
                 v = g.input("v", x[2].shape(), dtype), z = g.input("z", x[3].shape(), dtype);
    const Tensor rq = rotated(transpose(q, 1, 2), of_q), tk = transpose(k, 1, 2),
                 rk = rotates_k ? rotated(tk, of_k) : tk;
    const Tensor o = flash_attn(rq, rk, transpose(v, 1, 2), options).o;
    std::vector<Tensor> wrt{q, k, v};
    if (reads_gradients) wrt.insert(wrt.end(), {rq, rk, o});
    std::vector<Tensor> fetch = gradients((o * z).sum(), wrt);
    for (std::size_t i = 3; i < fetch.size(); ++i) fetch[i] = contiguous(transpose(fetch[i], 1, 2));
    fetch.insert(fetch.begin(), o);
    if (reads_gradients) fetch.insert(fetch.end(), {rq, rk});  // otherwise results reuse their memory
    return run(g, fetch, {{q, x[0]}, {k, x[1]}, {v, x[2]}, {z, x[3]}});
  }

  // Computes the same results in several programs. Each program has one RoPE or attention op.
  std::vector<Array> one_by_one() const {
    const std::vector<Array> x = operands();
    const auto alone = [&](const Array& a, const RopeOptions& o) {
      Graph g;
      const Tensor t = g.input("x", a.shape(), dtype);
      return run(g, {contiguous(transpose(rotated(transpose(t, 1, 2), o), 1, 2))}, {{t, a}}).results[0];
    };
    const auto back = [&](const Array& a, const RopeOptions& o) {
      Graph g;
      const Tensor t = g.input("x", a.shape(), dtype), z = g.input("z", a.shape(), dtype);
      const Tensor y = rotated(transpose(t, 1, 2), o);
      return run(g, gradients((y * transpose(z, 1, 2)).sum(), {t}), {{t, a}, {z, a}}).results[0];
    };
    const Array rq = alone(x[0], of_q), rk = rotates_k ? alone(x[1], of_k) : x[1];
    Graph g;
    const Tensor q = g.input("q", rq.shape(), dtype), k = g.input("k", rk.shape(), dtype),
                 v = g.input("v", x[2].shape(), dtype), z = g.input("z", x[3].shape(), dtype);
    const Tensor o = flash_attn(transpose(q, 1, 2), transpose(k, 1, 2), transpose(v, 1, 2), options).o;
    std::vector<Tensor> fetch = gradients((o * z).sum(), {q, k, v});
    fetch.insert(fetch.begin(), o);
    std::vector<Array> got = run(g, fetch, {{q, rq}, {k, rk}, {v, x[2]}, {z, x[3]}}).results;
    if (reads_gradients) got.push_back(got[1]), got.push_back(got[2]);
    got[1] = back(got[1], of_q);
    if (rotates_k) got[2] = back(got[2], of_k);
    return got;
  }
};

// Expects one program to be bitwise identical to several programs. `inside` is the expected number of
// attention kernels that compute RoPE on Hopper, forward and backward.
void check(const Case& c, const std::string& what, std::size_t inside) {
  SCOPED_TRACE(what + " " + std::string(name_of(c.dtype)));
  const Ran got = c.at_once();
  const std::vector<Array> expected = c.one_by_one();
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(got.results[i].same_bits(expected[i])) << "result " << i;
  if (!is_hopper()) return;
  std::size_t with_ropes = 0;
  for (const std::string& choice : got.choices)
    with_ropes += choice.find(c.rotates_k ? "with both RoPE ops" : "with one RoPE op") != std::string::npos;
  EXPECT_EQ(with_ropes, inside) << ::testing::PrintToString(got.choices);
}

TEST_F(CudaRope, IsInsideShortHeads) {
  for (const DType t : {bf16, f16}) check({.dtype = t}, "half split", 2);
  const RopeOptions interleaved{.interleaved = true}, partial{.dims = 8},
      some{.dims = 12, .interleaved = true}, later{.theta = 100, .start = 1000};
  check({.of_q = interleaved, .of_k = interleaved}, "interleaved", 2);
  check({.of_q = partial, .of_k = partial}, "partial", 2);
  check({.of_q = some, .of_k = some, .dtype = f16}, "interleaved, partial", 2);
  check({.of_q = later, .of_k = later}, "from position 1000", 2);
  check({.L = 31, .T = 31, .d = 8, .dv = 24}, "odd length", 2);
  check({.L = 50, .T = 50, .d = 64, .dv = 40}, "wide", 2);
  check({.L = 64, .T = 64, .d = 64, .dv = 64, .of_q = interleaved, .of_k = interleaved}, "the largest", 2);
  check({.options = {.window_left = 7, .window_right = 3}}, "window", 2);
  check({.B = 1, .L = 17, .T = 17}, "one row of a second tile", 2);
}

// The first pairs are not rotated, and keys have a different RoPE. Latent attention does the same.
TEST_F(CudaRope, OnlyQueriesInsideShortHeads) {
  const RopeOptions rows{.interleaved = true, .frequencies = {0, 0, 0, 0, 0, 0, 0, 0, 1, 0.1, 0.01, 0.001}};
  check({.d = 24, .of_q = rows, .rotates_k = false}, "queries", 2);
  check({.L = 20, .T = 40, .d = 24, .of_q = rows, .rotates_k = false}, "fewer queries than keys", 2);
}

TEST_F(CudaRope, IsSeparateIfNecessary) {
  const RopeOptions other{.theta = 100}, odd{.dims = 6}, later{.start = 2};
  check({.of_k = other}, "other frequencies", 0);
  check({.of_k = later}, "another start", 0);
  check({.of_q = odd, .of_k = odd}, "an odd number of pairs", 0);
  check({.given = true}, "given positions", 0);
  check({.L = 20, .T = 40}, "another number of keys", 0);
  check({.H = 4, .Hk = 2}, "shared keys", 0);
  check({.L = 100, .T = 100}, "long", 0);
  check({.dtype = f32}, "f32", 0);
}

// Hopper's backward rotates z_q with the last addition or when it rounds the sums. It rotates z_k in
// registers.
TEST_F(CudaRope, IsInsideHoppersBackward) {
  const auto of_64 = [](Case c) {
    c.d = c.dv = 64;
    return c;
  };
  for (const DType t : {bf16, f16}) check(of_64({.H = 4, .L = 200, .T = 200, .dtype = t}), "causal", 1);
  check(of_64({.L = 131, .T = 131, .options = {}}), "full", 1);
  check(of_64({.B = 1, .H = 6, .L = 300, .T = 300, .options = {.causal = true, .window_left = 90}}), "window",
        1);
  check(of_64({.L = 129, .T = 129, .of_q = {.start = 70}, .of_k = {.start = 70}}), "from position 70", 1);
  check(of_64({.L = 128, .T = 128, .options = {.nondeterministic = true}}), "rounded by a separate kernel",
        1);
  Case values = of_64({.L = 140, .T = 140});
  values.dv = 24;
  check(values, "narrower values", 1);
}
// Each block of keys adds to z_q. A separate kernel rounds the sums.
TEST_F(CudaRope, LongSequencesAreInsideHoppersBackward) {
  check({.B = 1, .H = 1, .Hk = 1, .L = 1100, .T = 1100, .d = 64, .dv = 64, .options = {}}, "long", 1);
}
TEST_F(CudaRope, IsAfterHoppersBackwardIfNecessary) {
  Case c{.L = 140, .T = 140, .d = 64, .dv = 64};
  check(c, "taken", 1);
  const auto with = [&](auto&& change) {
    Case other = c;
    change(other);
    return other;
  };
  check(with([](Case& x) { x.of_q = x.of_k = {.interleaved = true}; }), "interleaved", 0);
  check(with([](Case& x) { x.of_q = x.of_k = {.dims = 32}; }), "partial", 0);
  check(with([](Case& x) { x.rotates_k = false; }), "only queries", 0);
  check(with([](Case& x) { x.d = 128; }), "wider heads", 0);
  check(with([](Case& x) { x.options.softcap = 5; }), "softcap", 0);
  check(with([](Case& x) { x.given = true; }), "given positions", 0);
  for (const auto& [t, kernels] :
       {std::pair{f32, AttentionKernels::best}, {bf16, AttentionKernels::tensor_cores}})
    check(with([&](Case& x) {
            x.B = x.H = x.Hk = 1, x.L = x.T = 66, x.dtype = t, x.options.kernels = kernels;
          }),
          "other kernels", 0);
}

// z_q must be stored if another step reads it without RoPE.
TEST_F(CudaRope, GradientsWithOtherReadersAreStored) {
  const Case c{.reads_gradients = true};
  const Ran got = c.at_once();
  const std::vector<Array> expected = c.one_by_one();
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(got.results[i].same_bits(expected[i])) << "result " << i;
  for (const std::string& choice : got.choices)
    EXPECT_TRUE(choice.find("backward") == std::string::npos || choice.find("rope") == std::string::npos)
        << choice;
}

// The parts of a key have separate gradients, for example in latent attention.
TEST_F(CudaRope, AnUnrotatedGradientMayHaveReaders) {
  Graph g;
  const Tensor q = g.input("q", {2, 2, 32, 16}, bf16), k = g.input("k", {2, 2, 32, 16}, bf16);
  const Tensor o = flash_attn(rope(q), k, k, {.causal = true}).o;
  const std::vector<Tensor> z = gradients((o * o).sum(), {q, k});
  const Array a = normal({2, 2, 32, 16}, bf16, 1), b = normal({2, 2, 32, 16}, bf16, 2);
  const Ran got = run(g, {z[0], z[1], sum(z[1], {0})}, {{q, a}, {k, b}});
  if (is_hopper()) {
    EXPECT_EQ(
        std::ranges::count_if(got.choices, [](const auto& c) { return c.ends_with("with one RoPE op"); }), 2);
  }
}
// RoPE is not fused here. Otherwise the kernel would read rows of keys while other blocks write them.
TEST_F(CudaRope, TensorsReadTwiceAreSeparate) {
  Graph g;
  const Tensor x = g.input("x", {2, 2, 64, 16}, bf16), y = rope(x);
  const Array a = normal({2, 2, 64, 16}, bf16, 3);
  for (const bool as_keys : {true, false}) {
    const Tensor o = flash_attn(y, as_keys ? y : x, as_keys ? x : y).o;
    const Ran got = run(g, {o}, {{x, a}});
    for (const std::string& choice : got.choices) EXPECT_FALSE(choice.ends_with("rope")) << choice;
  }
}

// Two RoPE ops outside attention share a launch.
TEST_F(CudaRope, TwoAreOneKernel) {
  const Ran got = Case{.H = 4, .Hk = 2, .L = 100, .T = 100}.at_once();
  std::size_t together = 0, done = 0;
  for (const std::string& choice : got.choices)
    together += choice.find("two RoPE steps in one kernel") != std::string::npos,
        done += choice.find("rope: done by the previous step") != std::string::npos;
  EXPECT_EQ(together, 2u) << ::testing::PrintToString(got.choices);
  EXPECT_EQ(done, 2u);
}

// Elements that are not rotated are copied or stay in place. Their values must not change.
TEST_F(CudaRope, UnrotatedElementsDoNotChange) {
  RopeOptions still{.interleaved = true, .frequencies = std::vector<double>(16, 0.0)};
  for (int i = 0; i < 8; ++i) still.frequencies.push_back(std::pow(10.0, -i));
  const Array a = normal({2, 3, 5, 48}, bf16, 7);
  const RopeOptions partial{.dims = 16};
  for (const bool is_partial : {false, true}) {
    const RopeOptions& o = is_partial ? partial : still;
    Graph g;
    const Tensor x = g.input("x", a.shape(), bf16), wide = g.input("wide", a.shape(), f32);
    const Tensor copied = rope(x, {}, o), in_place = rope(cast(wide, bf16), {}, o);
    const std::vector<Array> got =
        run(g, {copied, in_place, cast(rope(cast(x, f64), {}, o), bf16)}, {{x, a}, {wide, a.to(f32)}})
            .results;
    EXPECT_TRUE(got[0].same_bits(got[1]));
    for (std::int64_t i = 0; i < a.numel(); ++i) {
      ASSERT_NEAR(got[0].at(i), got[2].at(i), 0.02) << i;
      const std::int64_t e = i % 48;
      if (is_partial ? e >= 16 : e < 32) {
        ASSERT_EQ(got[0].at(i), a.at(i));
      }
    }
  }
}

// Two programs with the same RoPE share a table. One of them outlives the other.
TEST_F(CudaRope, TablesOutliveTheProgramThatCreatedThem) {
  const Array a = normal({1, 2, 40, 16}, f32, 5);
  std::vector<Array> results;
  Graph g;
  const Tensor x = g.input("x", a.shape(), f32), y = rope(x), back = gradients((y * y).sum(), {x})[0];
  auto first = std::make_unique<Program>(compile(g, {y}, {.device = Device::cuda()}));
  Program second = compile(g, {back}, {.device = Device::cuda()});
  first->feed({x, a}), first->run();
  const Array before = first->fetch(y);
  first.reset();
  second.feed({x, a}), second.run();
  const Array z = second.fetch(back);  // 2·x, because the second rotation is the inverse of the first
  for (std::int64_t i = 0; i < a.numel(); ++i) ASSERT_NEAR(z.at(i), 2 * a.at(i), 1e-5);
  Program third = compile(g, {y}, {.device = Device::cuda()});
  third.feed({x, a}), third.run();
  EXPECT_TRUE(third.fetch(y).same_bits(before));
}

}  // namespace
}  // namespace tg
