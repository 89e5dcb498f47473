// Calls flash_attn and its backward on random numbers, on any backend. Also defines the allowed difference
// from the results in f64.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <random>

#include <tilegrad/ops/flash_attn.h>
#include <tilegrad/tilegrad.h>

namespace tg::testing {

using Vector = std::vector<double>;

inline bool has_gpu() {
  try {
    backend(Device::cuda());
    return true;
  } catch (const DeviceError&) {
    return false;
  }
}

class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU";
  }
};

struct Sizes {
  std::int64_t B, H, Hk, L, T, d, dv;
};
struct Extras {
  Shape bias = {};  // empty: no bias
  bool hiding = false;
  bool sink = false, z_lse = true, projected = false;  // projected: stored as [B, L, H, d]
  bool values_are_keys = false;                        // each value is the first columns of its key
  std::vector<std::int32_t> cu_q = {}, cu_k = {};
  std::vector<std::int64_t> lengths = {};
  double q = 2, k = 1, v = 1, z_o = 1;  // magnitude of the numbers
  double beyond = 0;                    // number in keys and values beyond the lengths, or 0 for none
  double off = 0;                       // added to ξ between the forward and the backward
  std::function<void(const std::string& name, Array&)> change = {};  // if set, changes the inputs
};

inline Vector doubles(const Array& a) {
  return a.to(f64).values<double>();
}

inline Array random_array(const Shape& shape, std::uint64_t seed, DType dtype, double factor = 1) {
  std::mt19937_64 bits(seed);
  Vector x(static_cast<std::size_t>(numel(shape)));
  for (double& e : x) e = factor * (static_cast<double>(bits() >> 11) * 0x1p-52 - 1);
  return Array::of(shape, x).to(dtype);
}

// The forward's results o and ξ, and the gradients from the backward for random z_o and z_ξ.
struct Results {
  std::vector<const char*> names;
  std::vector<Array> values;
  std::map<std::string, Array> inputs;
};

struct Problem {
  Sizes n;
  AttentionOptions options = {};
  Extras more = {};
  std::function<void()> before = {};  // called before each run

  // Rounds the inputs to `rounded` and computes in `dtype`.
  Results run(DType rounded, DType dtype, const CompileOptions& how, int times = 1, bool fused = true) const {
    Graph g;
    std::deque<Array> arrays;
    std::map<std::string, Array> by_name;
    std::vector<Feed> feeds;
    const auto input = [&](const char* name, const Array& a) {
      arrays.push_back(a);
      if (more.change) more.change(name, arrays.back());
      by_name.insert_or_assign(name, arrays.back());
      const Tensor t = g.input(name, a.shape(), a.dtype());
      feeds.emplace_back(t, arrays.back());
      return t;
    };
    const auto floats = [&](const char* name, const Shape& shape, std::uint64_t seed, double factor = 1) {
      return input(name, random_array(shape, seed, rounded, factor).to(dtype));
    };
    const auto operand = [&](const char* name, std::int64_t heads, std::int64_t rows, std::int64_t size,
                             std::uint64_t seed, double factor) {
      if (!more.projected) return floats(name, {n.B, heads, rows, size}, seed, factor);
      return floats(name, {n.B, rows, heads, size}, seed, factor).transpose(1, 2);
    };
    const auto keys = [&](const char* name, std::int64_t size, std::uint64_t seed, double factor) {
      if (more.beyond == 0) return operand(name, n.Hk, n.T, size, seed, factor);
      Array a = random_array({n.B, n.Hk, n.T, size}, seed, rounded, factor).to(dtype);
      const std::int64_t each = n.Hk * n.T * size;
      for (std::int64_t e = 0; e < a.numel(); ++e)
        if (e % (n.T * size) / size >= more.lengths[static_cast<std::size_t>(e / each)])
          a.set(e, more.beyond);
      return input(name, a);
    };
    const Tensor q = operand("q", n.H, n.L, n.d, 1, more.q), k = keys("k", n.d, 2, more.k),
                 v = more.values_are_keys ? k.slice(3, 0, n.dv) : keys("v", n.dv, 3, more.v);
    AttentionOptions o = options;
    if (!how.device) o.kernels = AttentionKernels::best;  // other devices have only one set of kernels
    if (!more.bias.empty()) {
      Array bias = random_array(more.bias, 4, rounded).to(dtype);
      for (std::int64_t e = 0; more.hiding && e < bias.numel(); e += 3) bias.set(e, -INFINITY);
      o.bias = input("bias", bias);
    }
    if (more.sink) o.sink = floats("sink", {n.H}, 5);
    if (!more.cu_q.empty()) {
      o.cu_seqlens_q = input("cu_q", Array::of(more.cu_q));
      o.cu_seqlens_k = input("cu_k", Array::of(more.cu_k));
    }
    if (!more.lengths.empty()) o.kv_lengths = input("lengths", Array::of(more.lengths));
    AttentionResult y = fused ? flash_attn(q, k, v, o) : standard_attn(q, k, v, o);
    AttentionAttrs a;
    for (const Node& node : g.nodes())
      if (node.op->name == (fused ? "flash_attn" : "standard_attn")) a = node.attrs.as<AttentionAttrs>();
    const Tensor lse = more.off == 0 ? y.lse : y.lse + more.off;
    std::vector<Tensor> in{q, k, v, y.o, lse, operand("z_o", n.H, n.L, n.dv, 6, more.z_o)};
    a.backward = true;
    a.has_z_lse = more.z_lse;
    if (a.has_z_lse)
      in.push_back(input("z_lse", random_array({n.B, n.H, n.L}, 7, f32).to(compute_type(dtype))));
    if (o.bias.defined()) {
      Shape four = o.bias.shape();
      while (four.size() < 4) four.insert(0, 1);
      in.push_back(view(o.bias, four));
    }
    if (o.sink.defined()) in.push_back(o.sink);
    if (o.cu_seqlens_q.defined()) in.push_back(o.cu_seqlens_q), in.push_back(o.cu_seqlens_k);
    if (o.kv_lengths.defined()) in.push_back(o.kv_lengths);
    if (o.dropout > 0) in.push_back(g.rng());
    a.needs_z_bias = a.has_bias;
    a.needs_z_sink = a.has_sink;
    const std::vector<Tensor> z =
        fused ? g.record(flash_attn_backward_op, in, a, std::source_location::current())
              : detail::decompose_attention_backward(in, a);
    Results r{{"o", "lse", "z_q", "z_k", "z_v"}, {}, {}};
    r.inputs = by_name;
    if (a.needs_z_bias) r.names.push_back("z_bias");
    if (a.needs_z_sink) r.names.push_back("z_sink");
    std::vector<Tensor> outputs{y.o, y.lse};
    outputs.insert(outputs.end(), z.begin(), z.end());
    Program p = compile(g, outputs, how);
    for (const Feed& f : feeds) p.feed(f);
    for (int t = 0; t < times; ++t) {
      p.set_step(0);
      if (before) before();
      p.run();
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const Array got = p.fetch(outputs[i]);
        if (t == 0)
          r.values.push_back(got);
        else
          EXPECT_TRUE(r.values[i].same_bits(got)) << r.names[i] << " changed in run " << t;
      }
    }
    return r;
  }
};

// The largest distance from the f64 value, relative to the largest value. Both sides round the operands. In
// 16-bit types, P and z_A are also rounded before a GEMM. This relative error is 2⁻⁹ for bf16 and 2⁻¹² for
// f16. The result is rounded once. u is computed from the rounded o. In f32, sums have a few hundred terms.
// For z_k and z_v, the same terms are summed over rows.
inline double bound(DType t) {
  return t == f64 ? 1e-11 : t == f32 ? 2e-5 : t == f16 ? 2e-3 : 1.6e-2;
}

// Returns the largest distance of an element from its expected value, and the position of this element. The
// distance is in units of the allowed error.
struct Distance {
  double units = 0;
  std::size_t where = 0;
};
inline Distance distance(const Vector& got, const Vector& expected, DType dtype) {
  double size = dtype == f64 || dtype == f32 ? 1 : 0.25;
  for (double e : expected)
    if (std::isfinite(e)) size = std::max(size, std::abs(e));
  Distance most;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double apart = got[i] == expected[i] ? 0 : std::abs(got[i] - expected[i]) / (bound(dtype) * size);
    if (!(apart <= most.units)) most = {std::isnan(apart) ? INFINITY : apart, i};
  }
  return most;
}

inline void expect_close(const Results& got, const Results& expected, DType dtype) {
  for (std::size_t k = 0; k < expected.values.size(); ++k) {
    const Vector g = doubles(got.values[k]), w = doubles(expected.values[k]);
    const auto [units, where] = distance(g, w, dtype);
    EXPECT_LE(units, 1) << got.names[k] << " at " << where << ": got " << g[where] << ", expected "
                        << w[where] << " (" << name_of(dtype) << ")";
  }
}

// f32 is also checked in TF32. The inputs are TF32 numbers. P and z_A are rounded to the number of bits in
// f16.
inline void check(const Problem& p, const std::string& what,
                  std::vector<DType> dtypes = {f64, f32, bf16, f16}) {
  for (DType t : dtypes) {
    SCOPED_TRACE(what + " " + std::string(name_of(t)));
    const bool verify = !p.options.nondeterministic;
    expect_close(p.run(t, t, {.device = Device::cuda(), .verify = verify}), p.run(t, f64, {}), t);
    if (t != f32) continue;
    SCOPED_TRACE("in TF32");
    expect_close(p.run(f16, f32, {.device = Device::cuda(), .tf32 = true, .verify = true}),
                 p.run(f16, f64, {}), f16);
  }
}

}  // namespace tg::testing
