// Computes standard attention [Stratos, FlashAttention eq. 4-5] with every option of flash_attn, forward and
// backward, on contiguous [B, H, L, d] vectors. This is the f64 oracle of the fused op.
#pragma once

#include "tests/reference/attention_options.h"

namespace tg::reference {

struct AttentionForward {
  Vector o;    // [B, H, L, dv]
  Vector lse;  // [B, H, L], ξ = c + log π; π includes the sink, but not dropout
};

struct AttentionGradients {
  Vector z_q, z_k, z_v;  // [B, H, L, d], [B, Hk, T, d], [B, Hk, T, dv]
  Vector z_bias;         // the shape of bias
  Vector z_sink;         // [H], or empty if sink is
};

// The row of the attention matrix that belongs to a query.
struct AttentionRow {
  Vector p;      // [T], probabilities before dropout
  Vector slope;  // [T], ∂s/∂(scaled score): 1 − tanh² with softcap, times the slope of the score function
  Vector drop;        // [T], factor of p by dropout: 0 or 1/(1 − dropout)
  double p_sink = 0;  // the sink's probability
  double xi = -kInfinity;
};

// Computes row (b, h, i). If the query sees a key, s = score(softcap(scale · q kᵀ)) + bias and p = exp(s − c)
// / π. If the row sees no key and has no sink, p = 0 and ξ = −∞.
inline AttentionRow attention_row(const AttentionShape& n, const AttentionOptions& o, const Vector& q,
                                  const Vector& k, Index b, Index h, Index i) {
  const Index g = h / (n.H / n.Hk);
  const double* q_i = q.data() + ((b * n.H + h) * n.L + i) * n.d;
  const double scale = o.scale.value_or(1 / std::sqrt(static_cast<double>(n.d)));
  AttentionRow row{Vector(n.T, 0.0), Vector(n.T, 1.0), Vector(n.T, 1.0)};
  Vector s(n.T, -kInfinity);
  for (Index t = 0; t < n.T; ++t) {
    const Pair at = pair_of(n, o, b, i, t);
    if (!at.visible || (o.mask && !o.mask(b, h, at.i, at.t))) continue;
    const double* k_t = k.data() + ((b * n.Hk + g) * n.T + t) * n.d;
    s[t] = 0;
    for (Index c = 0; c < n.d; ++c) s[t] += q_i[c] * k_t[c];
    s[t] *= scale;
    if (o.softcap > 0) {
      const double y = std::tanh(s[t] / o.softcap);
      s[t] = o.softcap * y;
      row.slope[t] = 1 - y * y;
    }
    if (o.score) {
      const auto [a, slope] = o.score(s[t], b, h, at.i, at.t);
      s[t] = a, row.slope[t] *= slope;
    }
    if (!o.bias.empty()) s[t] += o.bias[bias_index(o, b, h, i, t)];
    if (o.dropout > 0) row.drop[t] = o.keep(b, h, i, t) ? 1 / (1 - o.dropout) : 0;
  }
  const double sink = o.sink.empty() ? -kInfinity : o.sink[h];
  double c = sink;
  for (double s_t : s) c = std::max(c, s_t);
  if (c == -kInfinity) return row;
  double pi = std::exp(sink - c);
  for (double s_t : s) pi += std::exp(s_t - c);
  for (Index t = 0; t < n.T; ++t) row.p[t] = std::exp(s[t] - c) / pi;
  row.p_sink = std::exp(sink - c) / pi;
  row.xi = c + std::log(pi);
  return row;
}

// q [B, H, L, d], k [B, Hk, T, d], v [B, Hk, T, dv].
inline AttentionForward standard_attention_reference(const AttentionShape& n, const Vector& q,
                                                     const Vector& k, const Vector& v,
                                                     const AttentionOptions& o = {}) {
  AttentionForward f{Vector(n.B * n.H * n.L * n.dv, 0.0), Vector(n.B * n.H * n.L)};
  for (Index b = 0; b < n.B; ++b)
    for (Index h = 0; h < n.H; ++h)
      for (Index i = 0; i < n.L; ++i) {
        const AttentionRow row = attention_row(n, o, q, k, b, h, i);
        const Index g = h / (n.H / n.Hk), at = (b * n.H + h) * n.L + i;
        f.lse[at] = row.xi;
        for (Index t = 0; t < n.T; ++t) {
          if (row.p[t] == 0) continue;  // keys that no query sees may have any value
          for (Index c = 0; c < n.dv; ++c)
            f.o[at * n.dv + c] += row.p[t] * row.drop[t] * v[((b * n.Hk + g) * n.T + t) * n.dv + c];
        }
      }
  return f;
}

// z_o [B, H, L, dv]; z_lse [B, H, L], or empty for zero. Computes z_s = p ⊛ (z_p − u + z_ξ). For the sink,
// z_p = 0. u is a sum over keys. The fused op uses Lemma 2.1 instead, so the comparison tests the lemma.
inline AttentionGradients standard_attention_reference_backward(const AttentionShape& n, const Vector& q,
                                                                const Vector& k, const Vector& v,
                                                                const Vector& z_o, const Vector& z_lse,
                                                                const AttentionOptions& o = {}) {
  AttentionGradients z{Vector(q.size(), 0.0), Vector(k.size(), 0.0), Vector(v.size(), 0.0),
                       Vector(o.bias.size(), 0.0), Vector(o.sink.size(), 0.0)};
  const double scale = o.scale.value_or(1 / std::sqrt(static_cast<double>(n.d)));
  for (Index b = 0; b < n.B; ++b)
    for (Index h = 0; h < n.H; ++h)
      for (Index i = 0; i < n.L; ++i) {
        const AttentionRow row = attention_row(n, o, q, k, b, h, i);
        const Index g = h / (n.H / n.Hk), at = (b * n.H + h) * n.L + i;
        const double z_xi = z_lse.empty() ? 0 : z_lse[at];
        Vector z_p(n.T, 0.0);
        double u = 0;
        for (Index t = 0; t < n.T; ++t) {
          if (row.p[t] == 0) continue;
          const Index key = (b * n.Hk + g) * n.T + t;
          for (Index c = 0; c < n.dv; ++c) {
            z.z_v[key * n.dv + c] += row.p[t] * row.drop[t] * z_o[at * n.dv + c];
            z_p[t] += row.drop[t] * z_o[at * n.dv + c] * v[key * n.dv + c];
          }
          u += row.p[t] * z_p[t];
        }
        for (Index t = 0; t < n.T; ++t) {
          if (row.p[t] == 0) continue;
          const Index key = (b * n.Hk + g) * n.T + t;
          const double z_s = row.p[t] * (z_p[t] - u + z_xi);
          if (!o.bias.empty()) z.z_bias[bias_index(o, b, h, i, t)] += z_s;
          for (Index c = 0; c < n.d; ++c) {
            z.z_q[at * n.d + c] += z_s * row.slope[t] * scale * k[key * n.d + c];
            z.z_k[key * n.d + c] += z_s * row.slope[t] * scale * q[at * n.d + c];
          }
        }
        if (!o.sink.empty()) z.z_sink[h] += row.p_sink * (z_xi - u);
      }
  return z;
}

}  // namespace tg::reference
