// Model: a language model that consists of parts, which can be any layers. nn::Model(params, ModelConfig)
// creates GPT-2, Llama or DeepSeek models (nn/models/architecture.h).
#pragma once

#include <tilegrad/nn/models/language_model.h>
#include <tilegrad/nn/models/lora.h>
#include <tilegrad/nn/models/model_config.h>
#include <tilegrad/nn/models/model_parts.h>

namespace tg::nn {

// A language model. Copies share the layers, the parameters and the adapter.
class Model {
 public:
  // Makes a model from parts. They must have been created on `at` or below, because parameters() returns only
  // parameters from there. Throws Error if a required part is empty.
  Model(const Path& at, ModelParts parts);
  // Creates a model. If `at` is the root, parameters have the names of nanoGPT
  // ("transformer.h.0.attn.c_attn.weight") or Hugging Face ("model.layers.0.self_attn.q_proj.weight").
  // Weights from these libraries then match by name. Throws ShapeError or Error for invalid sizes before it
  // creates anything.
  Model(const Path& at, const ModelConfig& config);
  // Shares the layers, the parameters and the adapter.
  Model(const Model&) = default;
  Model& operator=(const Model&) = default;

  // Maps tokens i32 or i64 [B, L] to logits [B, L, vocabulary]. A cache in the call must not have a larger
  // capacity than the context. Throws ShapeError for more tokens than the context.
  Tensor operator()(TensorArg tokens, const CallArgs& call = {}) const {
    return head({features(tokens, call), tokens.where()});
  }
  // First part of a call: returns the features [B, L, width] after the last norm.
  Tensor features(TensorArg tokens, const CallArgs& call = {}) const;
  // Second part of a call: maps any rows [..., width] to logits [..., vocabulary].
  Tensor head(TensorArg x) const;
  // Returns the mean cross_entropy of the logits of any rows [..., width] with targets [...]. Uses
  // linear_cross_entropy if the head computes only a matmul and one of two conditions holds. The precision is
  // bf16 or f16, or there are enough rows for two chunks. Training steps are therefore bitwise identical for
  // any memory budget.
  Tensor loss(TensorArg x, TensorArg targets, const LossOptions& options = {}) const;

  // The parameters in order of creation, followed by the adapter's parameters.
  const std::vector<Parameter>& parameters() const { return state_->parameters; }
  // Its Linear layers.
  const std::vector<LinearSlot>& linears() const { return linears_; }
  // Its adapter; null if there is none.
  const Lora* lora() const { return state_->lora.get(); }
  // The maximum sequence length in tokens.
  std::int64_t context() const { return parts_.context; }
  // Shares the layers: the result remains valid after this object is destroyed, as long as the parameters
  // exist.
  operator LanguageModel() const;

 private:
  friend void add_lora(Model& model, const LoraOptions& options, const ModuleOf& module_of);
  friend void remove_lora(Model& model);
  struct State {
    std::vector<Parameter> parameters;
    std::shared_ptr<const Lora> lora = {};
  };
  ModelParts parts_;
  std::vector<LinearSlot> linears_;
  std::shared_ptr<State> state_;  // copies share it, as they share the layers
};

}  // namespace tg::nn
