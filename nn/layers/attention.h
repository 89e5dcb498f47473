// Causal self-attention in the layouts of GPT-2 and of Llama. Projections enter flash_attn as views and its
// output merges heads as a view: nothing is copied in between.
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
  Tensor record(TensorArg x, const Call& call) const override;
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
  Tensor record(TensorArg x, const Call& call) const override;
  bool adds_residual() const override { return true; }
  GroupedAttention(const Path& at, std::int64_t width, const Options& checked, std::int64_t heads);
  void keep_settings(const Path& at) const;
  // Heads of queries or keys, normalized and rotated: [B, heads, L, d].
  Tensor rotated(const Tensor& x, std::int64_t heads, std::size_t norm, const Tensor& positions,
                 const RopeOptions& rotation) const;
  Tensor magnified(const Tensor& k) const;

  std::int64_t heads_;
  Options o_;
  Linear q_proj_, k_proj_, v_proj_, o_proj_;
  std::vector<RmsNorm> norms_;  // none, or of queries and of keys
};

namespace detail {

// Throws ShapeError if it is not whole.
std::int64_t head_width(const Path& at, std::int64_t width, std::int64_t heads);
Tensor by_head(const Tensor& x, std::int64_t heads);  // [B, L, heads·d] → [B, heads, L, d], a view
Tensor merged(const Tensor& o);                       // flash_attn's [B, H, L, d] → [B, L, H·d], a view
// For rope on [B, H, L, d] of a layer's input x [B, L, …]: those after the tokens in the call's cache, [B, 1,
// L], or those of the rank's tokens, [L] (ContextParallel); undefined if they are 0, 1, ….
Tensor positions_by_head(const Call& call, TensorArg x);
// Whether the call has no cache, and its sequences at most `length` tokens on all ranks.
bool is_short_call(const Call& call, TensorArg x, std::int64_t length);
// flash_attn, or what it is where sequences are divided among ranks; heads merged.
Tensor attended(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options);

}  // namespace detail

}  // namespace tg::nn
