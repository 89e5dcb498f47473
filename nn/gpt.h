// GPT: causal self-attention, its block and the model, with the parameter names and starting values of
// nanoGPT ("transformer.h.0.attn.c_attn.weight"), whose PyTorch checkpoints therefore fit by name.
#pragma once

#include "nn/layers.h"

namespace tg {

// Causal multi-head attention (004 §3.2): one projection to queries, keys and values ("c_attn"), flash
// attention on views of it, heads merged as a view, and a projection back ("c_proj"). Nothing is copied in
// between.
class SelfAttention {
 public:
  struct Options {
    bool bias = true;
    double dropout = 0;                    // of attention weights
    double std = 0.02, output_std = 0.02;  // of the starting values of c_attn and c_proj
  };
  // Throws ShapeError when heads does not divide width.
  SelfAttention(const Path& at, std::int64_t width, std::int64_t heads, Options options);
  SelfAttention(const Path& at, std::int64_t width, std::int64_t heads)
      : SelfAttention(at, width, heads, Options{}) {}

  // x [B, L, width] → [B, L, width], added to a residual when one is given.
  Tensor operator()(In x, Mode mode = Mode::evaluate, Tensor residual = {}) const;

 private:
  std::string name_;
  std::int64_t head_width_, heads_;
  double dropout_;
  Linear c_attn_, c_proj_;
};

// c_proj(gelu(c_fc(x))), four times as wide inside; gelu by erf.
class Mlp {
 public:
  struct Options {
    bool bias = true;
    double std = 0.02, output_std = 0.02;  // of the starting values of c_fc and c_proj
  };
  Mlp(const Path& at, std::int64_t width, Options options);
  Mlp(const Path& at, std::int64_t width) : Mlp(at, width, Options{}) {}

  Tensor operator()(In x, Tensor residual = {}) const;  // [..., width], added to a residual when one is given

 private:
  std::string name_;
  Linear c_fc_, c_proj_;
};

struct GptConfig {
  std::int64_t vocabulary = 0, context = 64;
  std::int64_t layers = 4, heads = 4, width = 128;
  double dropout = 0;
  bool bias = false;      // in Linear and LayerNorm
  bool tied_head = true;  // the head's weight is the token embedding's
  double std = 0.02;      // of starting weights; GPT-2's, which has width 768

  void check() const;               // throws ShapeError or Error naming what does not fit
  std::int64_t parameters() const;  // numbers in all parameters, as a model of this configuration has them
};

// x + attention(norm(x)), then x + mlp(norm(x)).
class Block {
 public:
  Block(const Path& at, const GptConfig& config);
  Tensor operator()(In x, Mode mode = Mode::evaluate) const;  // [B, L, width]

 private:
  std::string name_;
  double dropout_;
  LayerNorm ln_1_;
  SelfAttention attn_;
  LayerNorm ln_2_;
  Mlp mlp_;
};

class Gpt {
 public:
  Gpt(const Path& at, const GptConfig& config);

  // tokens i32 or i64 [B, L], L up to the context → logits [B, L, vocabulary].
  Tensor operator()(In tokens, Mode mode = Mode::evaluate) const;
  const GptConfig& config() const { return config_; }

 private:
  std::string name_;
  GptConfig config_;
  Embedding wte_, wpe_;
  std::vector<Block> blocks_;
  LayerNorm ln_f_;
  std::vector<Linear> head_;  // one unless the head is tied
};

}  // namespace tg
