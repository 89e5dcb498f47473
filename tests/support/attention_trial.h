// A trial runs the fused attention kernels on random operands, forward and backward. It compares the results
// with the definition in f64. The kernels of every instruction set run on one to three threads. Their results
// must be bitwise identical. Include this file after `#define TG_ISA baseline`.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>

#include "backends/cpu/kernels/attention/attention.h"
#include "tests/support/attention_oracle.h"
#include "tests/support/guarded.h"
#include "tests/support/kernel_team.h"

namespace tg::cpu {

#define TG_DECLARE(isa)                                               \
  namespace isa {                                                     \
  extern const AttentionKernel attention_forward, attention_backward; \
  }
#ifdef TILEGRAD_ISA_avx2
TG_DECLARE(avx2)
#endif
#ifdef TILEGRAD_ISA_avx512
TG_DECLARE(avx512)
#endif
#ifdef TILEGRAD_TILE_MODEL
TG_DECLARE(on_tile_model)
#endif

struct Isa {
  const char* name;
  const AttentionKernel *forward, *backward;
};
#define TG_ENTRY(isa) \
  { #isa, &isa::attention_forward, &isa::attention_backward }
inline std::vector<Isa> isas([[maybe_unused]] DType type = DType::f32) {
  std::vector<Isa> all = {TG_ENTRY(baseline)};
#ifdef TILEGRAD_ISA_avx2
  if (machine_has("avx2")) all.push_back(TG_ENTRY(avx2));
#endif
#ifdef TILEGRAD_ISA_avx512
  if (machine_has("avx512")) all.push_back(TG_ENTRY(avx512));
#endif
#ifdef TILEGRAD_TILE_MODEL  // the baseline with emulated bf16 tiles
  if (type == DType::bf16) all.push_back(TG_ENTRY(on_tile_model));
#endif
  return all;
}

using Values = std::vector<double>;

// Memory of exactly the size of an operand, in [B, heads, rows, size] or [B, rows, heads, size] order.
struct Buffer {
  Buffer(DType t, std::int64_t B, std::int64_t heads, std::int64_t rows, std::int64_t size, bool rows_first)
      : type(t),
        B(B),
        heads(heads),
        rows(rows),
        size(size),
        rows_first(rows_first),
        bytes(static_cast<std::size_t>(B * heads * rows * size) * size_of(t), std::byte{0xff}) {}
  AttentionCall::TensorView operand() {
    const std::int64_t all = heads * rows * size;
    return rows_first ? AttentionCall::TensorView{bytes.data(), all, size, heads * size}
                      : AttentionCall::TensorView{bytes.data(), all, rows * size, size};
  }
  // Sets each element to f of its index in a contiguous [B, heads, rows, size] tensor.
  template <class F>
  void visit(F&& f) {
    const AttentionCall::TensorView a = operand();
    std::size_t flat = 0;
    for (std::int64_t b = 0; b < B; ++b)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t i = 0; i < rows; ++i)
          for (std::int64_t e = 0; e < size; ++e, ++flat)
            dispatch(type, [&](auto zero) {
              using S = decltype(zero);
              f(flat, reinterpret_cast<S*>(bytes.data())[b * a.batch + h * a.head + i * a.row + e]);
            });
  }
  void fill(Values& values) {  // also rounds `values` to the type
    visit([&](std::size_t at, auto& place) {
      using S = std::remove_reference_t<decltype(place)>;
      if constexpr (sizeof(S) == 2) {
        place = S(static_cast<float>(values[at]));
        values[at] = static_cast<float>(place);
      } else {
        place = static_cast<S>(values[at]);
        values[at] = static_cast<double>(place);
      }
    });
  }
  Values read() {
    Values values(static_cast<std::size_t>(B * heads * rows * size));
    visit([&](std::size_t at, auto& place) {
      if constexpr (sizeof(place) == 2) {
        values[at] = static_cast<float>(place);
      } else {
        values[at] = static_cast<double>(place);
      }
    });
    return values;
  }
  DType type;
  std::int64_t B, heads, rows, size;
  bool rows_first;
  std::vector<std::byte> bytes;
};

struct Trial {
  AttentionCall x;
  bool rows_first = false, sink = false, z_lse = false;
  // The axes of the bias as a bit mask: 8 batch, 4 head, 2 row, 1 column. -1 means that there is no bias.
  int bias = -1;
  double bias_infinite = 0;  // fraction of the bias entries that are −∞
  double bias_diagonal = 0;  // added to the diagonal of the bias, if the bias has rows and columns
};

inline double tolerance(DType t) {  // relative to the result; P and dS are also rounded, but only to
                                    // 16-bit types
  return t == DType::f64 ? 1e-12 : t == DType::f32 ? 1e-5 : t == DType::bf16 ? 0x1p-7 : 0x1p-10;
}

// Checks errors relative to the largest value or to `size`, the magnitude of the terms. The errors must not
// exceed `tolerance`. Operands are unit normal, so the magnitude of terms is about 1, even if their sum is
// near 0.
inline void expect_near(const Values& got, const Values& expected, double tolerance, const std::string& what,
                        double size = 1) {
  ASSERT_EQ(got.size(), expected.size());
  for (const double w : expected)
    if (std::isfinite(w)) size = std::max(size, std::fabs(w));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::isinf(expected[i])) {
      ASSERT_EQ(got[i], expected[i]) << what << " at " << i;
    } else {
      ASSERT_NEAR(got[i], expected[i], tolerance * size) << what << " at " << i;
    }
  }
}

inline void check(Trial s) {
  AttentionCall& x = s.x;
  std::mt19937 rng(11);
  std::normal_distribution<double> normal;
  const auto random = [&](std::int64_t n) {
    Values v(static_cast<std::size_t>(n));
    for (double& e : v) e = normal(rng);
    return v;
  };
  const DType stat = x.type == DType::f64 ? DType::f64 : DType::f32;
  AttentionValues in;
  in.q = random(x.B * x.H * x.L * x.d), in.k = random(x.B * x.Hk * x.T * x.d),
  in.v = random(x.B * x.Hk * x.T * x.dv);
  in.z_o = random(x.B * x.H * x.L * x.dv);
  Buffer q(x.type, x.B, x.H, x.L, x.d, s.rows_first), k(x.type, x.B, x.Hk, x.T, x.d, s.rows_first),
      v(x.type, x.B, x.Hk, x.T, x.dv, s.rows_first), z_o(x.type, x.B, x.H, x.L, x.dv, s.rows_first);
  q.fill(in.q), k.fill(in.k), v.fill(in.v), z_o.fill(in.z_o);
  x.q = q.operand(), x.k = k.operand(), x.v = v.operand(), x.z_o = z_o.operand();
  Guarded q_memory(q.bytes), k_memory(k.bytes), v_memory(v.bytes), z_o_memory(z_o.bytes);
  x.q.data = q_memory.data(), x.k.data = k_memory.data(), x.v.data = v_memory.data();
  x.z_o.data = z_o_memory.data();
  Buffer sink(x.type, 1, 1, 1, x.H, false), z_sink = sink, z_lse(stat, x.B, x.H, x.L, 1, false);
  if (s.sink)
    in.sink = random(x.H), sink.fill(in.sink), x.sink = sink.bytes.data(), x.z_sink = z_sink.bytes.data();
  if (s.z_lse) in.z_lse = random(x.B * x.H * x.L), z_lse.fill(in.z_lse), x.z_lse = z_lse.bytes.data();

  const std::int64_t kept[4] = {s.bias & 8 ? x.B : 1, s.bias & 4 ? x.H : 1, s.bias & 2 ? x.L : 1,
                                s.bias & 1 ? x.T : 1};
  Buffer bias(x.type, kept[0], kept[1], kept[2], kept[3], false), z_bias = bias;
  const auto broadcast = [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    return static_cast<std::size_t>(
        (((s.bias & 8 ? b : 0) * kept[1] + (s.bias & 4 ? h : 0)) * kept[2] + (s.bias & 2 ? i : 0)) * kept[3] +
        (s.bias & 1 ? j : 0));
  };
  if (s.bias >= 0) {
    Values small = random(kept[0] * kept[1] * kept[2] * kept[3]);
    for (double& e : small)
      if (std::uniform_real_distribution<double>()(rng) < s.bias_infinite)
        e = -std::numeric_limits<double>::infinity();
    for (std::int64_t i = 0; s.bias_diagonal != 0 && i < std::min(x.L, x.T); ++i)
      small[static_cast<std::size_t>(i * kept[3] + i)] += s.bias_diagonal;
    bias.fill(small);
    for (std::int64_t b = 0; b < x.B; ++b)
      for (std::int64_t h = 0; h < x.H; ++h)
        for (std::int64_t i = 0; i < x.L; ++i)
          for (std::int64_t j = 0; j < x.T; ++j) in.bias.push_back(small[broadcast(b, h, i, j)]);
    const auto strided = [&](Buffer& t) {
      return AttentionCall::Bias{t.bytes.data(), s.bias & 8 ? kept[1] * kept[2] * kept[3] : 0,
                                 s.bias & 4 ? kept[2] * kept[3] : 0, s.bias & 2 ? kept[3] : 0,
                                 s.bias & 1 ? 1 : 0};
    };
    x.bias = strided(bias), x.z_bias = strided(z_bias);
  }
  AttentionResult expected = attention_oracle(x, in);
  // The number of rows in the sum for one element of z_bias. Their rounding errors are independent.
  const double bias_terms = std::sqrt(
      static_cast<double>(x.B * x.H * x.L / std::max<std::int64_t>(1, kept[0] * kept[1] * kept[2])));
  Values expected_z_bias(static_cast<std::size_t>(kept[0] * kept[1] * kept[2] * kept[3]), 0);
  if (s.bias >= 0) {
    std::size_t at = 0;
    for (std::int64_t b = 0; b < x.B; ++b)
      for (std::int64_t h = 0; h < x.H; ++h)
        for (std::int64_t i = 0; i < x.L; ++i)
          for (std::int64_t j = 0; j < x.T; ++j)
            expected_z_bias[broadcast(b, h, i, j)] += expected.z_bias[at++];
  }

  for (const Isa& isa : isas(x.type)) {
    std::vector<std::vector<std::byte>> first;
    for (int threads = 1; threads <= 3; ++threads) {
      Buffer o(x.type, x.B, x.H, x.L, x.dv, s.rows_first), lse(stat, x.B, x.H, x.L, 1, false);
      Buffer z_q(x.type, x.B, x.H, x.L, x.d, s.rows_first), z_k(x.type, x.B, x.Hk, x.T, x.d, s.rows_first),
          z_v(x.type, x.B, x.Hk, x.T, x.dv, s.rows_first);
      x.o = o.operand(), x.lse = lse.bytes.data();
      x.z_q = z_q.operand(), x.z_k = z_k.operand(), x.z_v = z_v.operand();
      std::fill(z_bias.bytes.begin(), z_bias.bytes.end(), std::byte{0xff});
      std::fill(z_sink.bytes.begin(), z_sink.bytes.end(), std::byte{0xff});
      run_team(threads, isa.forward->scratch(x), [&](Worker& w) { isa.forward->run(x, w); });
      run_team(threads, isa.backward->scratch(x), [&](Worker& w) { isa.backward->run(x, w); });
      const std::string who = std::string(isa.name) + ", threads " + std::to_string(threads) + ": ";
      const std::vector<std::vector<std::byte>> all = {o.bytes,   lse.bytes,    z_q.bytes,   z_k.bytes,
                                                       z_v.bytes, z_bias.bytes, z_sink.bytes};
      if (threads > 1) {  // bitwise identical results need no comparison with the definition
        for (std::size_t i = 0; i < all.size(); ++i)
          ASSERT_TRUE(all[i].empty() || std::memcmp(all[i].data(), first[i].data(), all[i].size()) == 0)
              << who << "the result depends on the number of threads, output " << i;
        continue;
      }
      first = all;
      const double tol = tolerance(x.type);
      expect_near(o.read(), expected.o, tol, who + "o");
      expect_near(lse.read(), expected.lse, x.type == DType::f64 ? 1e-12 : 1e-5, who + "lse");
      expect_near(z_q.read(), expected.z_q, tol, who + "z_q");
      expect_near(z_k.read(), expected.z_k, tol, who + "z_k");
      expect_near(z_v.read(), expected.z_v, tol, who + "z_v");
      if (s.bias >= 0) expect_near(z_bias.read(), expected_z_bias, tol, who + "z_bias", bias_terms);
      if (s.sink) expect_near(z_sink.read(), expected.z_sink, tol, who + "z_sink");
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

inline Trial shape(int B, int H, int Hk, int L, int T, int d, int dv, DType type = DType::f32) {
  Trial s;
  s.x.type = type, s.x.B = B, s.x.H = H, s.x.Hk = Hk, s.x.L = L, s.x.T = T, s.x.d = d, s.x.dv = dv;
  s.x.scale = 1 / std::sqrt(static_cast<double>(d));
  return s;
}
inline void drop(Trial& s, double p) {
  static constexpr std::int64_t rng[] = {12345678901234567, 5};
  s.x.dropout = p, s.x.dropout_bound = dropout_bound(p);
  s.x.rng = rng, s.x.stream = 3;
}
template <class F>
Trial with(Trial s, F&& f) {
  f(s);
  return s;
}

}  // namespace tg::cpu
