// Model: a language model of pre-norm blocks with tied or untied head, as GPT-2, Llama or DeepSeek (dense)
// lay it out. Parameters have the names of nanoGPT ("transformer.h.0.attn.c_attn.weight") and of Hugging Face
// ("model.layers.0.self_attn.q_proj.weight"), whose weights therefore fit by name.
#pragma once

#include <string_view>
#include <variant>

#include <tilegrad/nn/layers/attention.h>
#include <tilegrad/nn/layers/latent_attention.h>
#include <tilegrad/nn/layers/mlp.h>

namespace tg::nn {

enum class Architecture {
  gpt,       // learned positions, LayerNorm, SelfAttention, GELU MLP
  llama,     // rotary positions, RMSNorm, GroupedAttention, SwiGLU
  deepseek,  // the same with LatentAttention
};
// "gpt", "llama", "deepseek". Throws Error for other names.
Architecture architecture_named(std::string_view name);
std::string_view name_of(Architecture architecture);

enum class Initializer {
  gpt2,     // N(0, std), what adds into the residual stream N(0, std/√(2·layers))
  pytorch,  // torch.nn's: Linear uniform in ±1/√inputs, Embedding N(0, 1)
};

struct ModelConfig {
  Architecture architecture = Architecture::gpt;
  std::int64_t vocabulary = 0, context = 64;
  std::int64_t layers = 4, heads = 4, width = 128;
  double dropout = 0;
  bool bias = false;      // in Linear and LayerNorm
  bool tied_head = true;  // the head's weight is the token embedding's
  double std = 0.02;      // of initial weights; GPT-2's, at width 768
  Initializer initializer = Initializer::gpt2;
  // llama
  std::int64_t key_heads = 0;  // 0: heads
  // deepseek
  std::int64_t latent = 32, query_latent = 0, rope_width = 8;  // as LatentAttention's
  // llama and deepseek
  std::int64_t mlp_width = 0;  // inside the MLP; 0: 8/3 of width, rounded up to a multiple of 8: GPT's size
  double theta = 10000;        // of rotary positions

  std::int64_t inner_width() const;  // mlp_width, or what 0 stands for
  void check() const;                // throws ShapeError or Error naming what does not fit
  std::string text() const;          // "GPT: 4 layers, 4 heads, width 128, context 64"
  std::int64_t parameters() const;   // numbers in all parameters, as a model of this configuration has them
};

// x + attention(norm(x)), then x + mlp(norm(x)).
class Block {
 public:
  Block(const Path& at, const ModelConfig& config);
  Tensor operator()(TensorArg x, Mode mode = Mode::evaluate,
                    CacheCall* cache = nullptr) const;  // [B, L, width]

 private:
  using Norm = std::variant<LayerNorm, RmsNorm>;
  using Attention = std::variant<SelfAttention, GroupedAttention, LatentAttention>;
  using FeedForward = std::variant<Mlp, GatedMlp>;

  std::string name_;
  double dropout_;
  Norm norm_1_;
  Attention attention_;
  Norm norm_2_;
  FeedForward mlp_;
};

class Model {
 public:
  Model(const Path& at, const ModelConfig& config);

  // tokens i32 or i64 [B, L] → logits [B, L, vocabulary]. L is at most the context; the tokens follow those
  // in a cache when one is given, whose capacity is at most the context.
  Tensor operator()(TensorArg tokens, Mode mode = Mode::evaluate, CacheCall* cache = nullptr) const {
    return head(features(tokens, mode, cache));
  }
  // Its two parts: [B, L, width] after the last norm, and logits of any rows [..., width]. With `recompute`,
  // of each block only the input is kept for the backward pass, which runs the block again.
  Tensor features(TensorArg tokens, Mode mode = Mode::evaluate, CacheCall* cache = nullptr,
                  bool recompute = false) const;
  Tensor head(TensorArg x) const;
  const ModelConfig& config() const { return config_; }
  Device device() const { return tokens_.weight().device(); }

 private:
  std::string name_;
  ModelConfig config_;
  Embedding tokens_;
  std::vector<Embedding> positions_;  // one if they are learned
  std::vector<Block> blocks_;
  std::variant<LayerNorm, RmsNorm> norm_;
  std::vector<Linear> head_;  // one unless the head is tied
};

}  // namespace tg::nn
