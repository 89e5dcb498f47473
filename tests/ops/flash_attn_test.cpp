// Compares flash_attn and standard_attn with the oracle. Covers the forward and every gradient, all options,
// groups of heads, memory orders and types.
#include <tilegrad/ops/flash_attn.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <tilegrad/core/base/rng.h>
#include <tilegrad/tilegrad.h>
#include "tests/reference/masked_attention.h"
#include "tests/reference/reference_checks.h"

namespace tg {
namespace {

using reference::AttentionShape;
using reference::close;
using reference::Index;
using reference::random_vector;
using reference::Vector;

// The memory layout of q, k and v.
enum class Order {
  heads_first,  // [B, H, L, d]
  rows_first,   // [B, L, H, d], the layout of a projection
  packed,       // a slice of [B, L, 3, H, d], with gaps between rows
  last_strided  // [B, H, d, L]: the last axis is not contiguous
};

struct Problem {
  AttentionShape n;
  reference::AttentionOptions o = {};
  Order order = Order::heads_first;
  DType dtype = f64;
  bool lse_gradient = true;
};

struct Result {
  Vector o, lse, z_q, z_k, z_v, z_bias, z_sink;
};

Vector doubles(const Array& a) {
  return a.to(f64).values<double>();
}

// Numbers of a problem, rounded to its dtype, and the oracle's results for these numbers.
struct Numbers {
  explicit Numbers(const Problem& p) : p(p), n(p.n), o(p.o) {
    q = rounded(random_vector(n.B * n.H * n.L * n.d, 1), 3);
    k = rounded(random_vector(n.B * n.Hk * n.T * n.d, 2));
    v = rounded(random_vector(n.B * n.Hk * n.T * n.dv, 3));
    z_o = rounded(random_vector(n.B * n.H * n.L * n.dv, 4));
    if (p.lse_gradient) z_lse = rounded(random_vector(n.B * n.H * n.L, 5));
    o.bias = rounded(o.bias);
    o.sink = rounded(o.sink);
  }
  Vector rounded(Vector x, double factor = 1) const {
    for (double& e : x) e *= factor;
    return x.empty() ? x : doubles(Array::of(x).to(p.dtype));
  }
  Result oracle(std::uint64_t key) const {
    reference::AttentionOptions with_keep = o;
    const AttentionShape s = n;
    const std::uint32_t bound = dropout_bound(o.dropout);
    with_keep.keep = [=](Index b, Index h, Index i, Index t) {
      const auto u = [](Index x) { return static_cast<std::uint32_t>(x); };
      return philox(attention_counter(u(b * s.H + h), u(i), u(t)), key)[static_cast<std::size_t>(t % 4)] >=
             bound;
    };
    const auto f = standard_attention_reference(n, q, k, v, with_keep);
    const auto z = standard_attention_reference_backward(n, q, k, v, z_o, z_lse, with_keep);
    return {f.o, f.lse, z.z_q, z.z_k, z.z_v, z.z_bias, z.z_sink};
  }

  const Problem p;
  const AttentionShape n;
  reference::AttentionOptions o;
  Vector q, k, v, z_o, z_lse;
};

// The problem as a graph. The inputs have the problem's memory order. The tensors are [B, heads, rows, size].
struct Build {
  Build(const Numbers& x, bool fused) : x(x) {
    const AttentionShape& n = x.n;
    q = operand("q", n.B, n.H, n.L, n.d, x.q);
    k = operand("k", n.B, n.Hk, n.T, n.d, x.k);
    v = operand("v", n.B, n.Hk, n.T, n.dv, x.v);
    AttentionOptions a;
    a.scale = x.o.scale;
    a.causal = x.o.causal;
    if (x.o.top_left) a.alignment = AttentionOptions::top_left;
    a.window_left = x.o.window_left, a.window_right = x.o.window_right;
    a.softcap = x.o.softcap;
    a.dropout = x.o.dropout;
    const auto& s = x.o.bias_shape;
    if (!x.o.bias.empty()) bias = a.bias = floats("bias", {s[0], s[1], s[2], s[3]}, x.o.bias);
    if (!x.o.sink.empty()) sink = a.sink = floats("sink", {n.H}, x.o.sink);
    if (!x.o.cu_q.empty()) {
      a.cu_seqlens_q = ints("cu_q", x.o.cu_q).to(i32);
      a.cu_seqlens_k = ints("cu_k", x.o.cu_k).to(i32);
    }
    if (!x.o.kv_lengths.empty()) a.kv_lengths = ints("lengths", x.o.kv_lengths);
    const AttentionResult y = fused ? flash_attn(q, k, v, a) : standard_attn(q, k, v, a);
    const Tensor z_o = floats("z_o", y.o.shape(), x.z_o);
    std::vector<Tensor> wrt{q, k, v};
    if (bias.defined()) wrt.push_back(bias);
    if (sink.defined()) wrt.push_back(sink);
    Tensor loss = sum(y.o.to(f64) * z_o.to(f64));
    if (!x.z_lse.empty()) {
      const Tensor z = floats("z_lse", y.lse.shape(), x.z_lse).to(f64);
      // If a query sees no key, ξ is −∞. Its gradient is zero by definition.
      loss = loss +
             sum(where(equal(y.lse.to(f64), -std::numeric_limits<double>::infinity()), 0, y.lse.to(f64)) * z);
    }
    outputs = gradients(loss, wrt);
    outputs.insert(outputs.begin(), {y.o, y.lse});
    for (const Node& node : g.nodes())
      if (node.op->name == (fused ? "flash_attn" : "standard_attn"))
        key = node_key(0, 0, static_cast<std::uint32_t>(node.attrs.as<AttentionAttrs>().stream));
  }

  Result run(const CompileOptions& options = {}) {
    std::vector<Array> got = eval(outputs, feeds, options);
    Result r{doubles(got[0]), doubles(got[1]), doubles(got[2]), doubles(got[3]), doubles(got[4]), {}, {}};
    if (bias.defined()) r.z_bias = doubles(got[5]);
    if (sink.defined()) r.z_sink = doubles(got.back());
    return r;
  }

  Tensor floats(const char* name, const Shape& shape, const Vector& values) {
    arrays.push_back(Array::of(shape, values).to(x.p.dtype));
    const Tensor t = g.input(name, shape, x.p.dtype);
    feeds.emplace_back(t, arrays.back());
    return t;
  }
  Tensor ints(const char* name, const std::vector<Index>& values) {
    arrays.push_back(Array::of(std::vector<std::int64_t>(values.begin(), values.end())));
    const Tensor t = g.input(name, arrays.back().shape(), i64);
    feeds.emplace_back(t, arrays.back());
    return t;
  }
  Tensor operand(const char* name, Index B, Index heads, Index rows, Index size, const Vector& values) {
    if (x.p.order == Order::heads_first) return floats(name, {B, heads, rows, size}, values);
    Vector moved(values.size());
    const bool strided = x.p.order == Order::last_strided;
    std::size_t from = 0;
    for (Index b = 0; b < B; ++b)
      for (Index h = 0; h < heads; ++h)
        for (Index i = 0; i < rows; ++i)
          for (Index e = 0; e < size; ++e)
            moved[strided ? ((b * heads + h) * size + e) * rows + i
                          : ((b * rows + i) * heads + h) * size + e] = values[from++];
    if (strided) return floats(name, {B, heads, size, rows}, moved).transpose(2, 3);
    const Tensor t = floats(name, {B, rows, heads, size}, moved);
    if (x.p.order == Order::rows_first) return t.transpose(1, 2);
    // Returns a computed tensor as a view with gaps.
    return slice(expand(t.unsqueeze(2), {B, rows, 3, heads, size}).contiguous(), 2, 1, 2)
        .squeeze(2)
        .transpose(1, 2);
  }

  const Numbers& x;
  Graph g;
  Tensor q, k, v, bias, sink;
  std::deque<Array> arrays;
  std::vector<Feed> feeds;
  std::vector<Tensor> outputs;
  std::uint64_t key = 0;
};

testing::AssertionResult agree(const Result& got, const Result& expected, double tolerance = 1e-12) {
  const std::tuple<const char*, const Vector*, const Vector*> pairs[] = {
      {"o", &got.o, &expected.o},
      {"lse", &got.lse, &expected.lse},
      {"z_q", &got.z_q, &expected.z_q},
      {"z_k", &got.z_k, &expected.z_k},
      {"z_v", &got.z_v, &expected.z_v},
      {"z_bias", &got.z_bias, &expected.z_bias},
      {"z_sink", &got.z_sink, &expected.z_sink}};
  for (const auto& [name, g, w] : pairs)
    if (const auto c = close(*g, *w, tolerance); !c)
      return testing::AssertionFailure() << name << " " << c.message();
  return testing::AssertionSuccess();
}

bool same(const Result& a, const Result& b) {
  return a.o == b.o && a.lse == b.lse && a.z_q == b.z_q && a.z_k == b.z_k && a.z_v == b.z_v &&
         a.z_bias == b.z_bias && a.z_sink == b.z_sink;
}

// Compares two forms with the oracle. The first form is the op, on one to three threads, in planned memory
// and in poisoned memory. The second form is the plain graph.
void check(const Problem& p, const std::string& what) {
  SCOPED_TRACE(what);
  const Numbers x(p);
  Build fused(x, true), plain(x, false);
  const Result one = fused.run({.threads = 1, .verify = true});
  EXPECT_TRUE(agree(one, x.oracle(fused.key)));
  EXPECT_TRUE(same(one, fused.run({.threads = 2}))) << "two threads give other bits";
  EXPECT_TRUE(same(one, fused.run({.threads = 3}))) << "three threads give other bits";
  EXPECT_TRUE(agree(plain.run(), x.oracle(plain.key))) << "standard_attn";
}

struct Option {
  const char* name;
  reference::AttentionOptions o;
};

// For these sizes, tests each option by itself, and all compatible options together.
std::vector<Option> options_for(const AttentionShape& n) {
  using O = reference::AttentionOptions;
  std::vector<Option> all = {{"none", O{}}, {"scale", O{.scale = 0.7}}};
  const auto add = [&](const char* name, const O& o) { all.push_back({name, o}); };
  add("causal", {.causal = true});
  add("top-left", {.causal = true, .top_left = true});
  add("window", {.window_left = 3, .window_right = 5});
  add("left window", {.window_left = 4});
  add("right window", {.window_right = 2});
  add("causal window", {.causal = true, .window_left = 2});
  add("top-left window", {.causal = true, .top_left = true, .window_left = 6});
  add("softcap", {.softcap = 1.3});
  for (const auto& [name, s] : {std::pair{"bias", std::array{n.B, n.H, n.L, n.T}},
                                std::pair{"key bias", std::array<Index, 4>{1, 1, 1, n.T}},
                                std::pair{"head bias", std::array<Index, 4>{1, n.H, n.L, n.T}},
                                std::pair{"row bias", std::array<Index, 4>{n.B, 1, n.L, 1}}}) {
    O o{.bias = random_vector(s[0] * s[1] * s[2] * s[3], 6), .bias_shape = s};
    add(name, o);
  }
  O hiding{.bias = random_vector(n.L * n.T, 7), .bias_shape = {1, 1, n.L, n.T}};
  for (std::size_t e = 0; e < hiding.bias.size(); e += 3) hiding.bias[e] = -INFINITY;
  if (n.L > 1) std::fill_n(hiding.bias.begin(), n.T, -INFINITY);
  add("hiding bias", hiding);
  add("sink", {.sink = random_vector(n.H, 8)});
  O lengths{.causal = true};
  for (Index b = 0; b < n.B; ++b)
    lengths.kv_lengths.push_back(b == 1 ? 0 : std::max<Index>(0, n.T - 2 * b - 1));
  add("lengths", lengths);
  add("dropout", {.dropout = 0.25});
  O everything{.scale = 0.4,
               .causal = true,
               .window_left = 9,
               .bias = random_vector(n.H * n.T, 9),
               .bias_shape = {1, n.H, 1, n.T},
               .softcap = 2,
               .sink = random_vector(n.H, 10),
               .dropout = 0.1};
  everything.kv_lengths = lengths.kv_lengths;
  add("everything", everything);
  if (n.B == 1 && n.L >= 9 && n.T >= 9) {
    O packed{.causal = true, .cu_q = {0, 3, 3, n.L - 2}, .cu_k = {1, 5, 6, n.T}};
    add("packed", packed);
    packed.causal = false, packed.window_left = 2, packed.sink = random_vector(n.H, 11), packed.dropout = 0.1;
    add("packed window sink dropout", packed);
  }
  return all;
}

void check_all(const AttentionShape& n, Order order) {
  for (const Option& option : options_for(n)) check({n, option.o, order}, option.name);
}

TEST(FlashAttn, AgreesWithTheOracleOnEveryOption) {
  check_all({2, 2, 2, 11, 13, 4, 4}, Order::heads_first);
}
TEST(FlashAttn, SharesKeysAmongAGroupOfHeads) {
  check_all({1, 4, 2, 13, 12, 5, 3}, Order::rows_first);
}
TEST(FlashAttn, SharesOneKeyHead) {
  check_all({2, 3, 1, 12, 9, 3, 6}, Order::packed);
}
TEST(FlashAttn, AcceptsAStridedLastAxis) {
  check_all({1, 2, 1, 10, 15, 4, 2}, Order::last_strided);
}

// There are several tiles in each direction. The last tile is partial.
TEST(FlashAttn, AgreesWithTheOracleAcrossTiles) {
  using O = reference::AttentionOptions;
  const AttentionShape n{1, 2, 1, 150, 333, 9, 6};
  check({n, {}, Order::rows_first}, "none");
  check({n, {.causal = true}, Order::rows_first}, "causal");
  check({n, {.window_left = 70, .window_right = 20}, Order::rows_first}, "window");
  O all{.causal = true,
        .window_left = 200,
        .bias = random_vector(2 * 150 * 333, 9),
        .bias_shape = {1, 2, 150, 333},
        .softcap = 2,
        .sink = random_vector(2, 10),
        .dropout = 0.1};
  check({n, all, Order::heads_first}, "all");
  check({n, {.causal = true, .cu_q = {0, 70, 71, 150}, .cu_k = {0, 120, 300, 333}}, Order::rows_first},
        "packed");
}

TEST(FlashAttn, AcceptsRaggedAndEmptyShapes) {
  const Index shapes[][7] = {{1, 1, 1, 1, 1, 1, 1}, {1, 2, 1, 1, 17, 3, 5}, {1, 1, 1, 17, 1, 2, 2},
                             {1, 2, 2, 0, 3, 4, 4}, {1, 2, 2, 3, 0, 4, 4},  {0, 2, 1, 3, 4, 4, 4},
                             {2, 0, 0, 3, 4, 4, 4}, {1, 2, 1, 5, 5, 65, 1}};
  for (const auto& s : shapes)
    for (const bool causal : {false, true}) {
      const AttentionShape n{s[0], s[1], s[2], s[3], s[4], s[5], s[6]};
      check({n, {.causal = causal}}, std::to_string(n.L) + " " + std::to_string(n.T));
    }
  check({{1, 2, 1, 3, 0, 4, 4}, {.sink = {0.5, -1}}}, "only a sink");
}

TEST(FlashAttn, NeedsNoGradientOfLse) {
  check({{1, 2, 1, 9, 8, 4, 4}, {.causal = true, .sink = {0.3, 0.2}}, Order::rows_first, f64, false},
        "only o");
}

// Adds 0.3 to the numbers and then subtracts 0.3, in the dtype. Returns the largest change.
double slack(const Vector& expected, DType t) {
  double most = 0;
  Graph g;
  const Array array = Array::of(expected).to(t);
  const Tensor x = g.input("x", array.shape(), t);
  const Vector moved = doubles(eval(cast(cast(x + 0.3, t) - 0.3, t), {{x, array}}, {.fuse = false})),
               base = doubles(array);
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (std::isfinite(base[i])) most = std::max(most, std::abs(moved[i] - base[i]));
  return 2 * most;
}

double farthest(const Vector& got, const Vector& expected) {
  double most = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double apart = got[i] == expected[i] ? 0 : std::abs(got[i] - expected[i]);
    most = std::isnan(apart) ? INFINITY : std::max(most, apart);
  }
  return most;
}

// In f32, every number is a sum of at most d + H·(L + T) terms of about 1. 16-bit types follow
// FlashAttention's rule. The distance from the f64 result is at most twice the distance of the unfused
// computation in the same dtype. With softcap, the factor is three. The rounding error of numbers near 0.3 is
// added. The unfused computation rounds the scores, P, z_P and the result. These errors are a few units in
// the last place of the largest numbers.
TEST(FlashAttn, IsAsGoodAsUnfusedInNarrowTypes) {
  const AttentionShape n{2, 4, 2, 35, 70, 32, 24};
  const double chain = static_cast<double>(n.d + n.H * (n.L + n.T)) * 0x1p-24;
  const std::tuple<const char*, Vector Result::*> parts[] = {
      {"o", &Result::o},     {"lse", &Result::lse},       {"z_q", &Result::z_q},      {"z_k", &Result::z_k},
      {"z_v", &Result::z_v}, {"z_bias", &Result::z_bias}, {"z_sink", &Result::z_sink}};
  for (const DType t : {f32, bf16, f16})
    for (const Option& option : options_for(n)) {
      SCOPED_TRACE(option.name + std::string(" in ") + std::string(name_of(t)));
      const Numbers x({n, option.o, Order::rows_first, t});
      Build fused(x, true), plain(x, false);
      const Result fused_got = fused.run(), fused_expected = x.oracle(fused.key), plain_got = plain.run(),
                   plain_expected = x.oracle(plain.key);  // the two computations draw different masks
      if (t == f32) {
        EXPECT_TRUE(agree(fused_got, fused_expected, chain));
        EXPECT_TRUE(agree(plain_got, plain_expected, chain));
        continue;
      }
      EXPECT_TRUE(agree(plain_got, plain_expected, 8 * (t == bf16 ? 0x1p-8 : 0x1p-11)));
      const double factor = option.o.softcap > 0 ? 3 : 2, more = option.o.softcap > 0 ? 3e-4 : 0;
      for (const auto& [name, part] : parts) {
        if ((fused_expected.*part).empty()) continue;
        EXPECT_LE(farthest(fused_got.*part, fused_expected.*part),
                  factor * farthest(plain_got.*part, plain_expected.*part) +
                      slack(fused_expected.*part, &Result::lse == part ? f32 : t) + more)
            << name;
      }
    }
}

}  // namespace
}  // namespace tg
