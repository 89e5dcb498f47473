// Computes the results and gradients of an AttentionCall in f64 by definition, with all scores in memory.
// Tests compare the fused kernels with these results.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include <tilegrad/core/base/rng.h>
#include "backends/cpu/kernels/attention/attention.h"

namespace tg::cpu {

struct AttentionValues {                                // contiguous, f64
  std::vector<double> q, k, v, bias, sink, z_o, z_lse;  // bias [B, H, L, T]; empty: no bias
};
struct AttentionResult {
  std::vector<double> o, lse, z_q, z_k, z_v, z_bias,
      z_sink;  // z_bias [B, H, L, T], not yet summed over broadcast axes
};

inline bool attends(const AttentionCall& x, std::int64_t b, std::int64_t i, std::int64_t j) {
  std::int64_t row = i, key = j, rows = x.L, keys = x.T;
  if (x.cu_q) {
    std::int64_t s = 0;
    while (s < x.segments && !(i >= x.cu_q[s] && i < x.cu_q[s + 1])) ++s;
    if (s == x.segments || j < x.cu_k[s] || j >= x.cu_k[s + 1]) return false;
    row = i - x.cu_q[s], rows = x.cu_q[s + 1] - x.cu_q[s], key = j - x.cu_k[s],
    keys = x.cu_k[s + 1] - x.cu_k[s];
  } else if (x.lengths) {
    keys = x.lengths_are_i64 ? static_cast<const std::int64_t*>(x.lengths)[b]
                             : static_cast<const std::int32_t*>(x.lengths)[b];
  }
  const std::int64_t position = row + keys - rows;
  if (key >= keys) return false;
  if (x.causal && key > (x.top_left ? row : position)) return false;
  if (x.window_left >= 0 && key < position - x.window_left) return false;
  if (x.window_right >= 0 && key > position + x.window_right) return false;
  return true;
}

inline AttentionResult attention_oracle(const AttentionCall& x, const AttentionValues& in) {
  const auto at = [](std::int64_t e) { return static_cast<std::size_t>(e); };
  AttentionResult r;
  r.o.assign(at(x.B * x.H * x.L * x.dv), 0), r.lse.assign(at(x.B * x.H * x.L), 0);
  r.z_q.assign(in.q.size(), 0), r.z_k.assign(in.k.size(), 0), r.z_v.assign(in.v.size(), 0);
  r.z_bias.assign(at(x.B * x.H * x.L * x.T), 0), r.z_sink.assign(at(x.H), 0);
  const double none = -std::numeric_limits<double>::infinity();
  const std::uint64_t key = x.dropout > 0 ? node_key(static_cast<std::uint64_t>(x.rng[0]),
                                                     static_cast<std::uint64_t>(x.rng[x.rng_stride]),
                                                     static_cast<std::uint32_t>(x.stream))
                                          : 0;
  std::vector<double> a(at(x.T)), slope(at(x.T)), keep(at(x.T)), zp(at(x.T));
  for (std::int64_t b = 0; b < x.B; ++b)
    for (std::int64_t h = 0; h < x.H; ++h)
      for (std::int64_t i = 0; i < x.L; ++i) {
        const std::int64_t row = (b * x.H + h) * x.L + i, kh = b * x.Hk + h / (x.H / x.Hk);
        const double* q = &in.q[at(row * x.d)];
        double top = in.sink.empty() ? none : in.sink[at(h)];
        for (std::int64_t j = 0; j < x.T; ++j) {
          double s = 0;
          for (std::int64_t e = 0; e < x.d; ++e) s += q[e] * in.k[at((kh * x.T + j) * x.d + e)];
          s *= x.scale, slope[at(j)] = 1;
          if (x.softcap != 0) {
            const double t = std::tanh(s / x.softcap);
            s = x.softcap * t, slope[at(j)] = 1 - t * t;
          }
          if (!in.bias.empty()) s += in.bias[at(row * x.T + j)];
          a[at(j)] = attends(x, b, i, j) ? s : none;
          top = std::max(top, a[at(j)]);
          keep[at(j)] = 1;
          if (x.dropout > 0) {
            const auto block =
                philox(attention_counter(static_cast<std::uint32_t>(b * x.H + h),
                                         static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j)),
                       key);
            keep[at(j)] = block[at(j % 4)] >= dropout_bound(x.dropout) ? 1 / (1 - x.dropout) : 0;
          }
        }
        double sum = 0;
        if (top > none) {
          for (std::int64_t j = 0; j < x.T; ++j) sum += std::exp(a[at(j)] - top);
          if (!in.sink.empty()) sum += std::exp(in.sink[at(h)] - top);
        }
        const double lse = top > none ? top + std::log(sum) : none;
        r.lse[at(row)] = lse;
        for (std::int64_t j = 0; j < x.T; ++j) a[at(j)] = top > none ? std::exp(a[at(j)] - lse) : 0;  // P
        for (std::int64_t j = 0; j < x.T; ++j)
          for (std::int64_t e = 0; e < x.dv; ++e)
            r.o[at(row * x.dv + e)] += a[at(j)] * keep[at(j)] * in.v[at((kh * x.T + j) * x.dv + e)];
        if (in.z_o.empty()) continue;
        double u = 0;
        for (std::int64_t j = 0; j < x.T; ++j) {
          zp[at(j)] = 0;
          for (std::int64_t e = 0; e < x.dv; ++e) {
            const double z = in.z_o[at(row * x.dv + e)];
            r.z_v[at((kh * x.T + j) * x.dv + e)] += a[at(j)] * keep[at(j)] * z;
            zp[at(j)] += z * in.v[at((kh * x.T + j) * x.dv + e)] * keep[at(j)];
          }
          u += a[at(j)] * zp[at(j)];
        }
        if (!in.z_lse.empty()) u -= in.z_lse[at(row)];
        if (!in.sink.empty() && top > none) r.z_sink[at(h)] -= std::exp(in.sink[at(h)] - lse) * u;
        for (std::int64_t j = 0; j < x.T; ++j) {
          double z = a[at(j)] * (zp[at(j)] - u);
          r.z_bias[at(row * x.T + j)] = z;
          z *= slope[at(j)] * x.scale;
          for (std::int64_t e = 0; e < x.d; ++e) {
            r.z_q[at(row * x.d + e)] += z * in.k[at((kh * x.T + j) * x.d + e)];
            r.z_k[at((kh * x.T + j) * x.d + e)] += z * q[e];
          }
        }
      }
  return r;
}

}  // namespace tg::cpu
