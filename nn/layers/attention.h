// Causal self-attention in the layouts of GPT-2, Llama and DeepSeek. Projections are passed to flash_attn as
// views, and its output is merged across heads as a view, so nothing is copied.
#pragma once

#include <tilegrad/nn/layers/kv_cache.h>
#include <tilegrad/nn/layers/layers.h>
#include <tilegrad/ops/ops.h>

namespace tg::nn {

// Multi-head attention [Stratos, FlashAttention §3, eq. 7] in GPT-2's layout: one projection to queries, keys
// and values ("c_attn" [3·width, width]) and one of the output ("c_proj" [width, width]). x [B, L, width] →
// [B, L, width].
class SelfAttention : public Module {
 public:
  // Options of the layer.
  struct Options {
    bool bias = true;                 // of both projections
    double dropout = 0;               // probability for attention weights, in training
    Init init = Init::gpt2();         // initial values of c_attn
    Init output_init = Init::gpt2();  // initial values of c_proj
  };
  // Creates the parameters below `at`. Throws ShapeError if width is not a multiple of heads.
  SelfAttention(const Path& at, std::int64_t width, std::int64_t heads, Options options);
  // As above, with default options.
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
// [heads·d, width], "k_proj" and "v_proj" [key_heads·d, width], "o_proj" [width, heads·d]. x [B, L, width] →
// [B, L, width]. Query head h uses key head h / (heads / key_heads). key_heads = 1 is multi-query attention,
// key_heads = heads multi-head attention. Queries and keys can be normalized before the rotation ("q_norm",
// "k_norm").
class GroupedAttention : public Module {
 public:
  // Whether and how queries and keys are normalized.
  enum class QueryKeyNorm {
    none,  // not normalized
    head,  // RMSNorm of each head's d elements: gains [d] (Qwen 3, Gemma 3)
    whole  // RMSNorm across all heads: gains [heads·d] and [key_heads·d] (OLMo 2)
  };
  // Options of the layer.
  struct Options {
    std::int64_t key_heads = 0;                 // number of key and value heads; 0: heads
    std::int64_t head_width = 0;                // head size d; 0: width / heads
    bool bias = false;                          // of all projections
    bool qkv_bias = false;                      // of the first three projections, if `bias` is false
    QueryKeyNorm qk_norm = QueryKeyNorm::none;  // normalization of queries and keys
    double eps = 1e-6;                          // of that normalization
    bool plus_one = false;                      // gains of that normalization are 1 + weight, as in RmsNorm
    std::int64_t window = 0;  // number of keys that a query sees, including its own; 0: all earlier ones
    double scale = 0;         // factor of scores; 0: 1/√d
    double softcap = 0;       // limits scores to c·tanh(score / c); 0: no limit
    double dropout = 0;       // probability for attention weights, in training
    bool rotate = true;       // apply RoPE to queries and keys
    RopeOptions rope = {};    // theta, pairing, frequencies; Llama's weights use pairs (i, i + d/2)
    double magnitude = 1;     // factor of rotated queries and keys (YaRN, LongRoPE)
    // LongRoPE: frequencies of the rotated pairs if a call has no cache and at most short_length tokens.
    std::vector<double> short_frequencies = {};
    std::int64_t short_length = 0;    // in tokens; see short_frequencies
    Init init = Init::gpt2();         // initial values of q_proj, k_proj and v_proj
    Init output_init = Init::gpt2();  // initial values of o_proj
  };
  // Creates the parameters below `at`. Throws ShapeError unless heads is a multiple of key_heads. Without
  // head_width, width must be a multiple of heads.
  GroupedAttention(const Path& at, std::int64_t width, std::int64_t heads, Options options);
  // As above, with default options.
  GroupedAttention(const Path& at, std::int64_t width, std::int64_t heads)
      : GroupedAttention(at, width, heads, Options{}) {}

 private:
  Tensor record(TensorArg x, const CallArgs& call) const override;
  bool adds_residual() const override { return true; }
  // Queries or keys by head, normalized and rotated: [B, heads, L, d].
  Tensor rotated(const Tensor& x, std::int64_t heads, std::size_t norm, const Tensor& positions,
                 const RopeOptions& rotation) const;
  Tensor magnified(const Tensor& k) const;

  std::int64_t heads_;
  Options o_;
  Linear q_proj_, k_proj_, v_proj_, o_proj_;
  std::vector<RmsNorm> norms_;  // empty, or of queries and of keys
};

// Multi-head latent attention with decoupled rotary keys [Stratos, FlashAttention §3.2 and §3.2.1], in
// DeepSeek's layout. x [B, L, width] → [B, L, width]. All heads share a latent Z [T, m], from which keys and
// values are computed, and one rotary key [T, p]:
//    [Z₀ K_rope] = kv_a_proj_with_mqa(x),  Z = kv_a_layernorm(Z₀)                 m + p
//    [K_h V_h]   = kv_b_proj(Z)                                                   heads·(d + dv)
//    [Q_h Q_rope,h] = q_proj(x), or q_b_proj(q_a_layernorm(q_a_proj(x)))          heads·(d + p)
//    o_h         = softmax([Q_h R(Q_rope,h)]·[K_h R(K_rope)]ᵀ / √(d + p))·V_h,  then o_proj
// Rotary pairs are (2i, 2i + 1) or, with interleaved = false, (i, i + p/2), which costs a copy of the
// queries.
//
// With a cache, kv_b_proj is absorbed. With its parts U_k and U_v for head h, scores are (Q_h U_kᵀ)·Zᵀ +
// R(Q_rope,h)·R(K_rope)ᵀ and o_h = (P·Z)·U_v. Attention then reads one key head [Z R(K_rope)], whose Z is
// also the value. The cache stores m + p elements per token.
class LatentAttention : public Module {
 public:
  // Options of the layer.
  struct Options {
    std::int64_t latent = 32;              // m, size of the latent
    std::int64_t query_latent = 0;         // size of the queries' latent; 0: queries are not compressed
    std::int64_t rope_width = 8;           // p, even
    std::int64_t head_width = 0;           // d, even; 0: width / heads
    std::int64_t value_width = 0;          // dv; 0: d
    double theta = 10000;                  // base of the rotary frequencies
    std::vector<double> frequencies = {};  // p/2 rotary frequencies ω_i; empty: computed from theta
    // LongRoPE: these replace `frequencies` if a call has no cache and at most short_length tokens.
    std::vector<double> short_frequencies = {};
    std::int64_t short_length = 0;    // in tokens; see short_frequencies
    bool interleaved = true;          // rotary pairs (2i, 2i + 1); false: (i, i + p/2)
    double magnitude = 1;             // factor of rotated queries and keys (YaRN)
    double scale = 0;                 // factor of scores; 0: 1/√(d + p)
    double eps = 1e-6;                // of the norms
    bool bias = false;                // of q_a_proj, kv_a_proj_with_mqa and o_proj
    double dropout = 0;               // probability for attention weights, in training
    Init init = Init::gpt2();         // initial values of all projections except o_proj
    Init output_init = Init::gpt2();  // initial values of o_proj
  };
  // Creates the parameters below `at`. Throws ShapeError for sizes that do not fit.
  LatentAttention(const Path& at, std::int64_t width, std::int64_t heads, Options options);
  // As above, with default options.
  LatentAttention(const Path& at, std::int64_t width, std::int64_t heads)
      : LatentAttention(at, width, heads, Options{}) {}

 private:
  Tensor record(TensorArg x, const CallArgs& call) const override;
  bool adds_residual() const override { return true; }
  Tensor queries(TensorArg x, const Tensor& positions, const RopeOptions& rotation,
                 Mode mode) const;  // [B, H, L, d + p], the last p rotated
  // Returns the heads' values, merged, from the latent Z [B, L, m] and k_rope [B, 1, L, p].
  Tensor expanded(const Tensor& q, const Tensor& latent, const Tensor& k_rope, Mode mode) const;
  Tensor absorbed(const Tensor& q, const Tensor& latent, const Tensor& k_rope, CacheCall& cache) const;

  std::int64_t heads_;
  Options o_;
  std::vector<Linear> q_;  // q_proj, or q_a_proj and q_b_proj
  std::vector<RmsNorm> q_norm_;
  Linear kv_a_;
  RmsNorm kv_norm_;
  Linear kv_b_, o_proj_;
  // The first element is for calls with `frequencies`, the second one for calls with short_frequencies. With
  // interleaved pairs, query_rope_ covers whole query rows. Their first d elements do not rotate.
  RopeOptions query_rope_[2], key_rope_[2];
};

}  // namespace tg::nn
