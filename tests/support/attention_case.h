// A flash_attn call with plain numbers. Its results and all gradients are computed with the library and with
// the oracle.
#pragma once

#include "tests/reference/masked_attention.h"
#include "tests/support/op_testing.h"

namespace tg::testing {

struct Attended {
  Vector o, lse, z_q, z_k, z_v, z_bias, z_sink;
};

struct AttentionCase {
  reference::AttentionShape n;
  reference::AttentionOptions o;
  DType dtype;
  Vector q, k, v, z_o;        // random if they are not set
  Vector z_lse = {};          // empty: only o has a gradient
  bool boolean_mask = false;  // the bias contains 0 and −∞, and is passed as a mask

  explicit AttentionCase(const reference::AttentionShape& n, reference::AttentionOptions o = {},
                         DType dtype = f64)
      : n(n),
        o(std::move(o)),
        dtype(dtype),
        q(rounded(n.B * n.H * n.L * n.d, 1)),
        k(rounded(n.B * n.Hk * n.T * n.d, 2)),
        v(rounded(n.B * n.Hk * n.T * n.dv, 3)),
        z_o(rounded(n.B * n.H * n.L * n.dv, 4)) {}

  Attended run() const {
    Graph g;
    std::vector<Feed> feeds;
    const auto input = [&](const char* name, const Array& a) {
      const Tensor x = g.input(name, a.shape(), a.dtype());
      feeds.emplace_back(x, a);
      return x;
    };
    const auto sizes = [](std::initializer_list<reference::Index> all) {
      Shape shape;
      for (const reference::Index size : all) shape.push_back(static_cast<std::int64_t>(size));
      return shape;
    };
    const auto floats = [&](const char* name, const Shape& shape, const Vector& x) {
      return input(name, Array::of(shape, x).to(dtype));
    };
    const auto ints = [&](const char* name, const std::vector<reference::Index>& x) {
      return input(name, Array::of(std::vector<std::int32_t>(x.begin(), x.end())));
    };
    const Tensor tq = floats("q", sizes({n.B, n.H, n.L, n.d}), q),
                 tk = floats("k", sizes({n.B, n.Hk, n.T, n.d}), k),
                 tv = floats("v", sizes({n.B, n.Hk, n.T, n.dv}), v);
    std::vector<Tensor> wrt{tq, tk, tv};
    AttentionOptions a{.scale = o.scale,
                       .causal = o.causal,
                       .alignment = o.top_left ? AttentionOptions::top_left : AttentionOptions::bottom_right,
                       .window_left = static_cast<std::int64_t>(o.window_left),
                       .window_right = static_cast<std::int64_t>(o.window_right),
                       .softcap = o.softcap};
    const auto& s = o.bias_shape;
    const Shape shape = sizes({s[0], s[1], s[2], s[3]});
    if (boolean_mask) {
      Array mask(shape, boolean);
      for (std::size_t i = 0; i < o.bias.size(); ++i) mask.set(static_cast<std::int64_t>(i), o.bias[i] == 0);
      a.bias = input("mask", mask);
    } else if (!o.bias.empty()) {
      wrt.push_back(a.bias = floats("bias", shape, o.bias));
    }
    if (!o.sink.empty()) wrt.push_back(a.sink = floats("sink", sizes({n.H}), o.sink));
    if (!o.cu_q.empty()) a.cu_seqlens_q = ints("cu_q", o.cu_q), a.cu_seqlens_k = ints("cu_k", o.cu_k);
    if (!o.kv_lengths.empty()) a.kv_lengths = ints("lengths", o.kv_lengths);
    const AttentionResult y = flash_attn(tq, tk, tv, a);
    Tensor loss = sum(y.o.to(f64) * floats("z_o", y.o.shape(), z_o).to(f64));
    if (!z_lse.empty()) loss = loss + sum(y.lse.to(f64) * floats("z_lse", y.lse.shape(), z_lse).to(f64));
    std::vector<Tensor> all = gradients(loss, wrt);
    all.insert(all.begin(), {y.o, y.lse});
    const std::vector<Array> got = eval(all, feeds, {.threads = 1});
    Attended r{doubles(got[0]), doubles(got[1]), doubles(got[2]), doubles(got[3]), doubles(got[4]), {}, {}};
    if (!o.bias.empty() && !boolean_mask) r.z_bias = doubles(got[5]);
    if (!o.sink.empty()) r.z_sink = doubles(got.back());
    return r;
  }

  Attended expected() const {
    const auto f = standard_attention_reference(n, q, k, v, o);
    auto z = standard_attention_reference_backward(n, q, k, v, z_o, z_lse, o);
    if (boolean_mask) z.z_bias.clear();
    return {f.o, f.lse, z.z_q, z.z_k, z.z_v, z.z_bias, z.z_sink};
  }

 private:
  Vector rounded(reference::Index size, std::uint64_t seed) const {
    const Vector x = random_vector(size, seed);
    return x.empty() ? x : doubles(Array::of(x).to(dtype));
  }
};

inline void expect_same(const Attended& got, const Attended& expected, double tolerance = 1e-12) {
  EXPECT_TRUE(close(got.o, expected.o, tolerance)) << "o";
  EXPECT_TRUE(close(got.lse, expected.lse, tolerance)) << "lse";
  EXPECT_TRUE(close(got.z_q, expected.z_q, tolerance)) << "z_q";
  EXPECT_TRUE(close(got.z_k, expected.z_k, tolerance)) << "z_k";
  EXPECT_TRUE(close(got.z_v, expected.z_v, tolerance)) << "z_v";
  EXPECT_TRUE(close(got.z_bias, expected.z_bias, tolerance)) << "z_bias";
  EXPECT_TRUE(close(got.z_sink, expected.z_sink, tolerance)) << "z_sink";
}

// Expects the results and gradients of standard attention, computed in double.
inline void expect_oracle(const AttentionCase& c, double tolerance = 1e-12) {
  expect_same(c.run(), c.expected(), tolerance);
}

}  // namespace tg::testing
