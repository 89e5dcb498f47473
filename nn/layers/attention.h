// Causal self-attention in the layouts of GPT-2, of Llama and of DeepSeek. Projections enter flash_attn as
// views and its output merges heads as a view: nothing is copied in between.
#pragma once

#include <tilegrad/nn/layers/kv_cache.h>
#include <tilegrad/nn/layers/layers.h>
#include <tilegrad/ops/ops.h>

namespace tg::nn {

// Multi-head attention [Stratos, FlashAttention §3, eq. 7]: one projection to queries, keys and values
// ("c_attn"), and one of the output ("c_proj").
class SelfAttention : public Module {
 public:
  struct Options {
    bool bias = true;
    double dropout = 0;                                    // of attention weights
    Init init = Init::gpt2(), output_init = Init::gpt2();  // of c_attn and c_proj
  };
  // Throws ShapeError if width is not a multiple of heads.
  SelfAttention(const Path& at, std::int64_t width, std::int64_t heads, Options options);
  SelfAttention(const Path& at, std::int64_t width, std::int64_t heads)
      : SelfAttention(at, width, heads, Options{}) {}

 private:
  Tensor record(TensorArg x, const CallArgs& call) const override;
  bool adds_residual() const override { return true; }

  std::int64_t heads_;
  double dropout_;
  Linear c_attn_, c_proj_;
};

// Grouped-query attention [Stratos, FlashAttention §3.1] with rotary positions, in Llama's layout: "q_proj"
// [heads·d, width], "k_proj" and "v_proj" [key_heads·d, width], "o_proj". Query head h reads key head h /
// (heads / key_heads); key_heads = 1 is multi-query attention, key_heads = heads is multi-head attention.
// Queries and keys can be normalized before they are rotated ("q_norm", "k_norm").
class GroupedAttention : public Module {
 public:
  enum class QueryKeyNorm {
    none,
    head,  // RMSNorm of each head's d numbers: gains [d] (Qwen 3, Gemma 3)
    whole  // of all heads' numbers together: gains [heads·d] and [key_heads·d] (OLMo 2)
  };
  struct Options {
    std::int64_t key_heads = 0;   // 0: heads
    std::int64_t head_width = 0;  // d; 0: width / heads
    bool bias = false;
    bool qkv_bias = false;  // without `bias`: of the first three projections
    QueryKeyNorm qk_norm = QueryKeyNorm::none;
    double eps = 1e-6;        // of that norm
    bool plus_one = false;    // its gains, as RmsNorm has it
    std::int64_t window = 0;  // keys that a query sees, its own included; 0: all before it
    double scale = 0;         // of scores; 0: 1/√d
    double softcap = 0;       // c·tanh(score / c); 0: none
    double dropout = 0;       // of attention weights
    bool rotate = true;       // rope on queries and keys
    RopeOptions rope = {};    // theta, pairing, frequencies; Llama's weights pair (i, i + d/2)
    double magnitude = 1;     // a, by which rotations are multiplied (YaRN, LongRoPE)
    // LongRoPE: one for each rotated pair, in calls without a cache on at most short_length tokens.
    std::vector<double> short_frequencies = {};
    std::int64_t short_length = 0;
    Init init = Init::gpt2(), output_init = Init::gpt2();  // of the first three, and of o_proj
  };
  // Throws ShapeError unless heads is a multiple of key_heads and, without head_width, width one of heads.
  GroupedAttention(const Path& at, std::int64_t width, std::int64_t heads, Options options);
  GroupedAttention(const Path& at, std::int64_t width, std::int64_t heads)
      : GroupedAttention(at, width, heads, Options{}) {}

 private:
  Tensor record(TensorArg x, const CallArgs& call) const override;
  bool adds_residual() const override { return true; }
  // Heads of queries or keys, normalized and rotated: [B, heads, L, d].
  Tensor rotated(const Tensor& x, std::int64_t heads, std::size_t norm, const Tensor& positions,
                 const RopeOptions& rotation) const;
  Tensor magnified(const Tensor& k) const;

  std::int64_t heads_;
  Options o_;
  Linear q_proj_, k_proj_, v_proj_, o_proj_;
  std::vector<RmsNorm> norms_;  // none, or of queries and of keys
};

// Multi-head latent attention with decoupled rotary keys [Stratos, FlashAttention §3.2 and §3.2.1], in
// DeepSeek's layout. All heads share a latent Z [T, m], from which keys and values are computed, and one
// rotary key [T, p]:
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
  Tensor record(TensorArg x, const CallArgs& call) const override;
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
