// LanguageModel: the interface that training and generation need of a model. A Model converts to it. Any
// other mapping from tokens to logits becomes one by setting these functions.
#pragma once

#include <functional>
#include <vector>

#include <tilegrad/nn/layers/module.h>
#include <tilegrad/ops/ops.h>

namespace tg::nn {

// Options of a loss over many rows.
struct LossOptions {
  // Chunk and unit sizes in rows; see LinearCrossEntropyOptions. A different kind of loss may ignore them.
  std::int64_t chunk_rows = 0, unit_rows = 0;
};

// A language model as a set of functions.
struct LanguageModel {
  // Maps tokens i32 [B, L], L ≤ `context`, to features [B, L, …]. Row t may depend only on tokens 0 … t. With
  // a cache in the call, the tokens follow the cached tokens.
  std::function<Tensor(TensorArg tokens, const CallArgs& call)> features = {};
  // Maps features of any rows [B, n, …] to logits [B, n, vocabulary]. Generation computes logits of only a
  // few rows. If empty, the features are the logits.
  std::function<Tensor(TensorArg features)> head = {};
  // Maximum sequence length in tokens. Rows of training batches have this length.
  std::int64_t context = 0;
  std::vector<Parameter> parameters = {};  // all parameters, on one device
  // Maps any rows of features and their targets [B, n] to the mean cross_entropy. It is for models that
  // compute this loss in training without storing logits. If empty, the loss is computed from the head's
  // logits.
  std::function<Tensor(TensorArg features, TensorArg targets, const LossOptions& options)> loss = {};

  // Returns the logits [B, L, vocabulary] of tokens.
  Tensor logits(TensorArg tokens, const CallArgs& call = {}) const {
    return head_of({features_of(tokens, call), tokens.where()});
  }
  // Calls `features`. Throws Error if it is empty.
  Tensor features_of(TensorArg tokens, const CallArgs& call = {}) const {
    if (!features) throw Error(in_context("[language model] it has no `features`", tokens.where()));
    return features(tokens, call);
  }
  // Calls `head`, or returns x if it is empty.
  Tensor head_of(TensorArg x) const { return head ? head(x) : x.tensor(); }
  // Calls `loss`, or returns the cross_entropy of head_of(x) if it is empty.
  Tensor loss_of(TensorArg x, TensorArg targets, const LossOptions& options = {}) const {
    return loss ? loss(x, targets, options) : cross_entropy({head_of(x), x.where()}, targets);
  }
  // The device of the parameters; the CPU if there are none.
  Device device() const { return parameters.empty() ? Device::cpu() : parameters[0].device(); }
  // The number of elements in all parameters.
  std::int64_t count() const {
    std::int64_t n = 0;
    for (const Parameter& p : parameters) n += numel(p.shape());
    return n;
  }
};

// The attention weights of a layer on a token sequence.
struct AttentionMap {
  std::string layer;  // path of the attention layer: "transformer.h.0.attn"
  Array weights;      // P, f32 [heads, L, L]: from each token to earlier ones; rows sum up to 1
};

// Returns the weights of every flash_attn in the model's forward pass on L tokens, first layer first. L must
// not exceed the context. Computes in f32 and without dropout. Needs the memory that flash_attn avoids: more
// than layers·heads·L² floats. `threads` = 0: all cores of the machine.
std::vector<AttentionMap> attention_maps(const LanguageModel& model, const std::vector<std::int32_t>& tokens,
                                         int threads = 0);

}  // namespace tg::nn
