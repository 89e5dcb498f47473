// Multi-head latent attention with decoupled rotary keys [Stratos, FlashAttention §3.2 and §3.2.1], in
// DeepSeek's layout.
#pragma once

#include <tilegrad/nn/layers/attention.h>

namespace tg::nn {

// All heads share a latent Z [T, m], from which keys and values are computed, and one rotary key [T, p]:
//   [Z₀ K_rope] = kv_a_proj_with_mqa(x),  Z = kv_a_layernorm(Z₀)                 m + p
//   [K_h V_h]   = kv_b_proj(Z)                                                   heads·(d + dv)
//   [Q_h Q_rope,h] = q_proj(x), or q_b_proj(q_a_layernorm(q_a_proj(x)))          heads·(d + p)
//   o_h         = softmax([Q_h R(Q_rope,h)]·[K_h R(K_rope)]ᵀ / √(d + p))·V_h,  then o_proj
// Rotary pairs are (2i, 2i + 1). Queries, values and heads are views, and queries are rotated in one pass;
// pairs (i, i + p/2), if they are asked for, cost a copy of the queries.
// Keys are assembled once, because K_rope is shared and flash_attn reads whole rows of keys.
//
// With a cache, kv_b_proj is absorbed: with kv_b_proj's U_k and U_v of head h, scores are
// (Q_h U_kᵀ)·Zᵀ + R(Q_rope,h)·R(K_rope)ᵀ and o_h = (P·Z)·U_v. Attention then reads one key head [Z
// R(K_rope)], whose Z is also the value, and the cache holds m + p numbers per token.
class LatentAttention : public Module {
 public:
  struct Options {
    std::int64_t latent = 32;       // m
    std::int64_t query_latent = 0;  // of queries; 0: not compressed
    std::int64_t rope_width = 8;    // p, even
    std::int64_t head_width = 0;    // d, even; 0: width / heads
    std::int64_t value_width = 0;   // dv; 0: d
    double theta = 10000;
    std::vector<double> frequencies = {};  // ω_i, p/2 of them, instead of those of theta
    // LongRoPE: replace `frequencies` in calls without a cache on at most short_length tokens.
    std::vector<double> short_frequencies = {};
    std::int64_t short_length = 0;
    bool interleaved = true;                               // rotary pairs (2i, 2i + 1), else (i, i + p/2)
    double magnitude = 1;                                  // a, by which rotations are multiplied (YaRN)
    double scale = 0;                                      // of scores; 0: 1/√(d + p)
    double eps = 1e-6;                                     // of the norms
    bool bias = false;                                     // of q_a_proj, kv_a_proj_with_mqa and o_proj
    double dropout = 0;                                    // of attention weights
    Init init = Init::gpt2(), output_init = Init::gpt2();  // of all but o_proj, and of that
  };
  // Throws ShapeError for sizes that do not fit.
  LatentAttention(const Path& at, std::int64_t width, std::int64_t heads, Options options);
  LatentAttention(const Path& at, std::int64_t width, std::int64_t heads)
      : LatentAttention(at, width, heads, Options{}) {}

 private:
  Tensor record(TensorArg x, const Call& call) const override;
  bool adds_residual() const override { return true; }
  Tensor queries(TensorArg x, const Tensor& positions, const RopeOptions& rotation,
                 Mode mode) const;  // [B, H, L, d + p], the last p rotated
  // From the latent Z [B, L, m] and k_rope [B, 1, L, p] to the heads' values, merged.
  Tensor expanded(const Tensor& q, const Tensor& latent, const Tensor& k_rope, Mode mode) const;
  Tensor absorbed(const Tensor& q, const Tensor& latent, const Tensor& k_rope, CacheCall& cache) const;

  std::int64_t heads_;
  Options o_;
  std::vector<Linear> q_;  // q_proj, or q_a_proj and q_b_proj
  std::vector<RmsNorm> q_norm_;
  Linear kv_a_;
  RmsNorm kv_norm_;
  Linear kv_b_, o_proj_;
  // Of calls with `frequencies` and with short_frequencies. Interleaved queries: of whole rows, whose first d
  // elements stay.
  RopeOptions query_rope_[2], key_rope_[2];
};

}  // namespace tg::nn
