// Model: a language model that consists of parts, which can be any layers. nn::Model(params, ModelConfig)
// makes GPT-2's, Llama's or DeepSeek's (nn/models/architecture.h).
#pragma once

#include <tilegrad/nn/models/language_model.h>
#include <tilegrad/nn/models/lora.h>
#include <tilegrad/nn/models/model_config.h>
#include <tilegrad/nn/models/model_parts.h>

namespace tg::nn {

class Model {
 public:
  // The parts must have been made on `at` or below, where parameters() finds them. Throws Error for an empty
  // part that must not be.
  Model(const Path& at, ModelParts parts);
  // Throws ShapeError or Error, before it makes anything, for sizes that do not fit. `at` is the root for the
  // names of nanoGPT ("transformer.h.0.attn.c_attn.weight") and Hugging Face
  // ("model.layers.0.self_attn.q_proj.weight"), whose weights therefore fit by name.
  Model(const Path& at, const ModelConfig& config);
  Model(const Model&) = default;  // shares the layers, the parameters and the adapter
  Model& operator=(const Model&) = default;

  // tokens i32 or i64 [B, L] → logits [B, L, vocabulary]. Throws ShapeError for more tokens than the context.
  // A call's cache has at most the context as its capacity.
  Tensor operator()(TensorArg tokens, const CallArgs& call = {}) const {
    return head({features(tokens, call), tokens.where()});
  }
  // Its two parts: [B, L, width] after the last norm, and logits of any rows [..., width].
  Tensor features(TensorArg tokens, const CallArgs& call = {}) const;
  Tensor head(TensorArg x) const;
  // cross_entropy of the logits of any rows [..., width] with targets [...], the mean. If the head is a
  // product and nothing else it is linear_cross_entropy in bf16 and f16, and in any precision where rows are
  // enough for chunks (two of its units), so that a training step has the same bits with any memory budget.
  Tensor loss(TensorArg x, TensorArg targets, const LossOptions& options = {}) const;

  // In order of creation; those of an adapter come last.
  const std::vector<Parameter>& parameters() const { return state_->parameters; }
  const std::vector<LinearPlace>& linears() const { return linears_; }  // its Linear layers
  const Lora* lora() const { return state_->lora.get(); }               // its adapter; null: none
  std::int64_t context() const { return parts_.context; }
  // Shares the layers: remains valid without this object, as long as the parameters exist.
  operator LanguageModel() const;

 private:
  friend void add_lora(Model& model, const LoraOptions& options, const ModuleOf& module_of);
  friend void remove_lora(Model& model);
  struct State {
    std::vector<Parameter> parameters;
    std::shared_ptr<const Lora> lora = {};
  };
  ModelParts parts_;
  std::vector<LinearPlace> linears_;
  std::shared_ptr<State> state_;  // copies share it, as they share the layers
};

}  // namespace tg::nn
