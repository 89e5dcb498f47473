// Tests the oracle of flash_attn. Each option is compared with its definition. All options are compared with
// difference quotients.
#include "tests/reference/masked_attention.h"

#include "tests/reference/reference_checks.h"

namespace tg::reference {
namespace {

struct Inputs {
  AttentionShape n;
  Vector q, k, v, z_o, z_lse;
};

Inputs random_inputs(const AttentionShape& n, std::uint64_t seed) {
  Inputs x{n,
           random_vector(n.B * n.H * n.L * n.d, seed),
           random_vector(n.B * n.Hk * n.T * n.d, seed + 1),
           random_vector(n.B * n.Hk * n.T * n.dv, seed + 2),
           random_vector(n.B * n.H * n.L * n.dv, seed + 3),
           random_vector(n.B * n.H * n.L, seed + 4)};
  for (double& q : x.q) q *= 3;
  return x;
}

AttentionForward run(const Inputs& x, const AttentionOptions& o) {
  return standard_attention_reference(x.n, x.q, x.k, x.v, o);
}
AttentionGradients differentiate(const Inputs& x, const AttentionOptions& o) {
  return standard_attention_reference_backward(x.n, x.q, x.k, x.v, x.z_o, x.z_lse, o);
}

// Expects that the logits of b equal the logits of a plus `shift`.
void expect_same(const Inputs& x, const AttentionOptions& a, const AttentionOptions& b, double shift = 0) {
  Vector lse = run(x, a).lse;
  for (double& xi : lse) xi += shift;
  EXPECT_TRUE(close(run(x, b).o, run(x, a).o));
  EXPECT_TRUE(close(run(x, b).lse, lse));
  const AttentionGradients z = differentiate(x, a), w = differentiate(x, b);
  EXPECT_TRUE(close(z.z_q, w.z_q));
  EXPECT_TRUE(close(z.z_k, w.z_k));
  EXPECT_TRUE(close(z.z_v, w.z_v));
}

// Returns the mask as rows of 'x' and '.'.
std::vector<std::string> mask(Index L, Index T, const AttentionOptions& o, Index b = 0) {
  std::vector<std::string> rows;
  for (Index i = 0; i < L; ++i) {
    rows.emplace_back();
    for (Index t = 0; t < T; ++t)
      rows.back() += pair_of({2, 1, 1, L, T, 1, 1}, o, b, i, t).visible ? 'x' : '.';
  }
  return rows;
}
using Mask = std::vector<std::string>;

TEST(Mask, CausalAlignsBottomRightUnlessTopLeftIsRequested) {
  EXPECT_EQ(mask(2, 4, {.causal = true}), (Mask{"xxx.", "xxxx"}));
  EXPECT_EQ(mask(2, 4, {.causal = true, .top_left = true}), (Mask{"x...", "xx.."}));
  EXPECT_EQ(mask(4, 2, {.causal = true}), (Mask{"..", "..", "x.", "xx"}));
  EXPECT_EQ(mask(4, 2, {.causal = true, .top_left = true}), (Mask{"x.", "xx", "xx", "xx"}));
}

TEST(Mask, WindowIsInBottomRightCoordinates) {
  EXPECT_EQ(mask(3, 4, {.window_left = 1, .window_right = 0}), (Mask{"xx..", ".xx.", "..xx"}));
  EXPECT_EQ(mask(3, 3, {.window_left = 0}), (Mask{"xxx", ".xx", "..x"}));
  EXPECT_EQ(mask(3, 3, {.window_right = 1}), (Mask{"xx.", "xxx", "xxx"}));
  EXPECT_EQ(mask(3, 3, {.causal = true, .window_left = 1, .window_right = 2}), (Mask{"x..", "xx.", ".xx"}));
}

TEST(Mask, KeyLengthsMoveTheDiagonal) {
  EXPECT_EQ(mask(2, 5, {.kv_lengths = {3, 5}}), (Mask{"xxx..", "xxx.."}));
  EXPECT_EQ(mask(2, 5, {.causal = true, .kv_lengths = {3, 5}}), (Mask{"xx...", "xxx.."}));
  EXPECT_EQ(mask(2, 5, {.causal = true, .kv_lengths = {3, 5}}, 1), (Mask{"xxxx.", "xxxxx"}));
  EXPECT_EQ(mask(2, 5, {.kv_lengths = {0, 5}}), (Mask{".....", "....."}));
}

TEST(Mask, PackedSequencesSeeOnlyThemselves) {
  EXPECT_EQ(mask(4, 5, {.cu_q = {0, 1, 3}, .cu_k = {0, 2, 5}}), (Mask{"xx...", "..xxx", "..xxx", "....."}));
  EXPECT_EQ(mask(4, 5, {.causal = true, .cu_q = {0, 2, 2, 4}, .cu_k = {0, 2, 3, 5}}),
            (Mask{"x....", "xx...", "...x.", "...xx"}));
}

TEST(MaskedAttention, EquivalentOptionsAgree) {
  const Inputs x = random_inputs({2, 2, 1, 4, 6, 3, 2}, 1);
  Vector triangle(4 * 6, 0.0);  // [L, T]: −∞ above the bottom-right diagonal
  for (Index i = 0; i < 4; ++i)
    for (Index t = i + 3; t < 6; ++t) triangle[i * 6 + t] = -kInfinity;
  expect_same(x, {}, {.scale = 1 / std::sqrt(3.0)});
  expect_same(x, {.causal = true}, {.window_right = 0});
  expect_same(x, {.causal = true}, {.bias = triangle, .bias_shape = {1, 1, 4, 6}});
  expect_same(x, {}, {.bias = Vector(2, -3.0), .bias_shape = {2, 1, 1, 1}}, -3);
  expect_same(x, {}, {.softcap = 1e9});
  expect_same(x, {}, {.sink = {-kInfinity, -kInfinity}});
  expect_same(x, {.causal = true}, {.causal = true, .cu_q = {0, 4}, .cu_k = {0, 6}});
  expect_same(x, {.causal = true}, {.causal = true, .kv_lengths = {6, 6}});
  expect_same(x, {}, {.dropout = 0, .keep = [](Index, Index, Index, Index) { return false; }});
}

TEST(MaskedAttention, GroupedHeadsAreRepeatedKeyHeads) {
  const Inputs x = random_inputs({2, 6, 2, 3, 4, 3, 2}, 2);
  Inputs repeated = x;
  repeated.n.Hk = 6;
  repeated.k.clear();
  repeated.v.clear();
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 6; ++h) {
      const Index from = b * 2 + h / 3;
      repeated.k.insert(repeated.k.end(), x.k.begin() + from * 12, x.k.begin() + (from + 1) * 12);
      repeated.v.insert(repeated.v.end(), x.v.begin() + from * 8, x.v.begin() + (from + 1) * 8);
    }
  EXPECT_TRUE(close(run(repeated, {}).o, run(x, {}).o));
  const AttentionGradients z = differentiate(x, {}), w = differentiate(repeated, {});
  Vector z_k(x.k.size(), 0.0), z_v(x.v.size(), 0.0);  // gradients are summed over the copies
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 6; ++h) {
      for (Index c = 0; c < 12; ++c) z_k[(b * 2 + h / 3) * 12 + c] += w.z_k[(b * 6 + h) * 12 + c];
      for (Index c = 0; c < 8; ++c) z_v[(b * 2 + h / 3) * 8 + c] += w.z_v[(b * 6 + h) * 8 + c];
    }
  EXPECT_TRUE(close(w.z_q, z.z_q));
  EXPECT_TRUE(close(z_k, z.z_k));
  EXPECT_TRUE(close(z_v, z.z_v));
}

// A batch entry with a shorter cache must equal a problem with fewer keys. The other keys may have any
// values.
TEST(MaskedAttention, KeysBeyondTheLengthAreNotRead) {
  Inputs x = random_inputs({1, 1, 1, 3, 6, 3, 2}, 3), cut = x;
  cut.n.T = 4;
  cut.k.resize(4 * 3);
  cut.v.resize(4 * 2);
  std::fill(x.k.begin() + 4 * 3, x.k.end(), std::nan(""));
  std::fill(x.v.begin() + 4 * 2, x.v.end(), std::nan(""));
  const AttentionOptions o{.causal = true, .kv_lengths = {4}};
  EXPECT_TRUE(close(run(x, o).o, run(cut, {.causal = true}).o));
  AttentionGradients expected = differentiate(cut, {.causal = true});
  expected.z_k.resize(x.k.size(), 0.0);
  expected.z_v.resize(x.v.size(), 0.0);
  const AttentionGradients z = differentiate(x, o);
  EXPECT_TRUE(close(z.z_q, expected.z_q));
  EXPECT_TRUE(close(z.z_k, expected.z_k));
  EXPECT_TRUE(close(z.z_v, expected.z_v));
}

TEST(MaskedAttention, PackedSequencesAreSeparateProblems) {
  const Inputs x = random_inputs({1, 1, 1, 5, 7, 3, 2}, 4);
  const AttentionOptions o{.causal = true, .window_left = 1, .cu_q = {0, 2, 5}, .cu_k = {0, 3, 7}};
  Inputs parts[2] = {x, x};
  for (int s = 0; s < 2; ++s) {
    Inputs& p = parts[s];
    p.n.L = o.cu_q[s + 1] - o.cu_q[s];
    p.n.T = o.cu_k[s + 1] - o.cu_k[s];
    p.q = Vector(x.q.begin() + o.cu_q[s] * 3, x.q.begin() + o.cu_q[s + 1] * 3);
    p.k = Vector(x.k.begin() + o.cu_k[s] * 3, x.k.begin() + o.cu_k[s + 1] * 3);
    p.v = Vector(x.v.begin() + o.cu_k[s] * 2, x.v.begin() + o.cu_k[s + 1] * 2);
  }
  Vector expected;
  for (const Inputs& p : parts)
    for (double o_i : run(p, {.causal = true, .window_left = 1}).o) expected.push_back(o_i);
  EXPECT_TRUE(close(run(x, o).o, expected));
}

// The sink equals a key with a given logit and a value of zero.
TEST(MaskedAttention, SinkIsAnExtraKeyWithoutAValue) {
  const Inputs x = random_inputs({2, 2, 2, 3, 4, 3, 2}, 5);
  const Vector sink = {0.7, -1.2};
  Inputs more = x;
  more.n.T = 5;
  more.k.assign(2 * 2 * 5 * 3, 0.0);
  more.v.assign(2 * 2 * 5 * 2, 0.0);
  AttentionOptions extra{.bias = Vector(2 * 5, 0.0), .bias_shape = {1, 2, 1, 5}};
  for (Index head = 0; head < 4; ++head) {
    std::copy_n(x.k.begin() + head * 12, 12, more.k.begin() + head * 15);
    std::copy_n(x.v.begin() + head * 8, 8, more.v.begin() + head * 10);
    extra.bias[head % 2 * 5 + 4] = sink[head % 2];
  }
  EXPECT_TRUE(close(run(x, {.sink = sink}).o, run(more, extra).o));
  EXPECT_TRUE(close(run(x, {.sink = sink}).lse, run(more, extra).lse));
  const AttentionGradients z = differentiate(x, {.sink = sink}), w = differentiate(more, extra);
  EXPECT_TRUE(close(z.z_q, w.z_q));
  EXPECT_TRUE(close(z.z_sink, {w.z_bias[4], w.z_bias[9]}));
}

// Results for one query and two keys are computed by hand. Scores 6 and −6 are scaled to 3 and −3. Then they
// are capped to 2 tanh(±1.5).
TEST(MaskedAttention, SoftcapActsOnTheScaledScoreBeforeTheBias) {
  const Inputs x{{1, 1, 1, 1, 2, 1, 1}, {2}, {3, -3}, {1, 0}, {1}, {0}};
  const AttentionOptions o{.scale = 0.5, .bias = {0.25, 0}, .bias_shape = {1, 1, 1, 2}, .softcap = 2};
  const double s = 2 * std::tanh(1.5);
  EXPECT_TRUE(close(run(x, o).o, {1 / (1 + std::exp(-s - (s + 0.25)))}, 1e-15));
  EXPECT_TRUE(close(run(x, o).lse, {std::log(std::exp(s + 0.25) + std::exp(-s))}, 1e-15));
}

// All scores are equal, so P = 1/4. O is the number of kept values divided by 4 (1 − dropout).
TEST(MaskedAttention, DropoutRescalesKeptValuesAndNotTheStatistic) {
  Inputs x = random_inputs({1, 2, 1, 2, 4, 1, 1}, 6);
  std::fill(x.q.begin(), x.q.end(), 0.0);
  x.v = {1, 10, 100, 1000};
  const AttentionOptions o{.dropout = 0.75,
                           .keep = [](Index, Index h, Index i, Index t) { return t >= 2 * h + i; }};
  EXPECT_TRUE(close(run(x, o).o, {1111, 1110, 1100, 1000}));
  EXPECT_TRUE(close(run(x, o).lse, Vector(4, std::log(4.0))));
}

TEST(MaskedAttention, RowsWithoutVisibleKeysAreZeroAndHaveNoGradient) {
  const AttentionOptions empty[] = {{.kv_lengths = {0, 0}},
                                    {.bias = {-kInfinity}},
                                    {.cu_q = {0, 0}, .cu_k = {0, 3}},
                                    {.cu_q = {0, 4}, .cu_k = {3, 3}}};
  const Inputs x = random_inputs({2, 2, 1, 4, 3, 3, 2}, 7);
  for (const AttentionOptions& o : empty) {
    EXPECT_EQ(run(x, o).o, Vector(x.z_o.size(), 0.0));
    EXPECT_EQ(run(x, o).lse, Vector(x.z_lse.size(), -kInfinity));
    const AttentionGradients z = differentiate(x, o);
    EXPECT_EQ(z.z_q, Vector(x.q.size(), 0.0));
    EXPECT_EQ(z.z_k, Vector(x.k.size(), 0.0));
    EXPECT_EQ(z.z_v, Vector(x.v.size(), 0.0));
    EXPECT_EQ(z.z_bias, Vector(o.bias.size(), 0.0));
  }
  // For L = 4 and T = 3, only the first causal row is empty.
  const AttentionForward f = run(x, {.causal = true});
  EXPECT_EQ(f.lse[0], -kInfinity);
  EXPECT_TRUE(std::isfinite(f.lse[1]));
  // The sink is the only entry in the softmax of such a row, and it has no value.
  const AttentionForward with_sink = run(x, {.sink = {0.5, -2}, .kv_lengths = {0, 0}});
  EXPECT_EQ(with_sink.o, Vector(x.z_o.size(), 0.0));
  EXPECT_EQ(with_sink.lse[0], 0.5);
  EXPECT_EQ(with_sink.lse[4], -2);
}

// Tests the gradient of every input, with each option and with many options together. z_ξ may be given.
TEST(MaskedAttention, BackwardIsTheDerivativeUnderEveryOption) {
  const auto checkered = [](Index b, Index h, Index i, Index t) { return (b + 2 * h + 3 * i + t) % 3 != 0; };
  const Vector per_row = random_vector(2 * 4, 20), full = random_vector(2 * 2 * 4 * 6, 21);
  const AttentionOptions options[] = {
      {},
      {.scale = 0.3},
      {.causal = true},
      {.causal = true, .top_left = true},
      {.window_left = 1, .window_right = 1},
      {.bias = per_row, .bias_shape = {2, 1, 4, 1}},
      {.bias = full, .bias_shape = {2, 2, 4, 6}},
      {.bias = {0.5}},
      {.softcap = 1.5},
      {.sink = {0.3, -0.4}},
      {.causal = true, .cu_q = {0, 2, 3}, .cu_k = {0, 1, 6}},
      {.causal = true, .kv_lengths = {2, 5}},
      {.dropout = 0.25, .keep = checkered},
      {.scale = 0.7,
       .causal = true,
       .window_left = 3,
       .bias = full,
       .bias_shape = {2, 2, 4, 6},
       .softcap = 2,
       .sink = {0.3, -0.4},
       .kv_lengths = {3, 6},
       .dropout = 0.25,
       .keep = checkered},
  };
  int number = 0;
  for (AttentionOptions o : options) {
    SCOPED_TRACE(testing::Message() << "option set " << number++);
    Inputs x = random_inputs({2, 2, 1, 4, 6, 3, 2}, 8);
    const auto loss = [&] {
      const AttentionForward f = run(x, o);
      double sum = weighted_sum(f.o, x.z_o);
      for (std::size_t i = 0; i < f.lse.size(); ++i)
        if (f.lse[i] != -kInfinity) sum += f.lse[i] * x.z_lse[i];
      return sum;
    };
    const AttentionGradients z = differentiate(x, o);
    EXPECT_TRUE(close(z.z_q, four_point_gradient(x.q, loss), kDifferenceTolerance));
    EXPECT_TRUE(close(z.z_k, four_point_gradient(x.k, loss), kDifferenceTolerance));
    EXPECT_TRUE(close(z.z_v, four_point_gradient(x.v, loss), kDifferenceTolerance));
    EXPECT_TRUE(close(z.z_bias, four_point_gradient(o.bias, loss), kDifferenceTolerance));
    EXPECT_TRUE(close(z.z_sink, four_point_gradient(o.sink, loss), kDifferenceTolerance));
  }
}

}  // namespace
}  // namespace tg::reference
