// LanguageModel: what training and generation require of a model. A Model converts to it; anything else that
// maps tokens to logits becomes one by filling in these functions.
#pragma once

#include <functional>
#include <vector>

#include <tilegrad/nn/layers/module.h>
#include <tilegrad/ops/ops.h>

namespace tg::nn {

// Of a loss of many rows.
struct LossOptions {
  // See LinearCrossEntropyOptions. A loss that is not one may ignore them.
  std::int64_t chunk_rows = 0, unit_rows = 0;
};

struct LanguageModel {
  // tokens i32 [B, L], L up to `context`, → features [B, L, …]. Row t may depend on tokens 0 to t only. With
  // a call's cache the tokens follow those in it.
  std::function<Tensor(TensorArg tokens, const CallArgs& call)> features = {};
  // Features of any rows [B, n, …] → logits [B, n, vocabulary], so that generation computes those of one row
  // only. If left out, the features are the logits.
  std::function<Tensor(TensorArg features)> head = {};
  std::int64_t context = 0;                // tokens in a row of a training batch; the most there may be
  std::vector<Parameter> parameters = {};  // params.all(); they lie on one device
  // The mean cross_entropy of the logits of any rows of features, with targets [B, n], for models that have
  // one in training that need not be made of logits. If left out, it is that of the head's.
  std::function<Tensor(TensorArg features, TensorArg targets, const LossOptions& options)> loss = {};

  Tensor logits(TensorArg tokens, const CallArgs& call = {}) const {
    return head_of({features_of(tokens, call), tokens.where()});
  }
  Tensor features_of(TensorArg tokens, const CallArgs& call = {}) const {  // throws Error without `features`
    if (!features) throw Error(in_context("[language model] it has no `features`", tokens.where()));
    return features(tokens, call);
  }
  Tensor head_of(TensorArg x) const { return head ? head(x) : x.tensor(); }
  Tensor loss_of(TensorArg x, TensorArg targets, const LossOptions& options = {}) const {
    return loss ? loss(x, targets, options) : cross_entropy({head_of(x), x.where()}, targets);
  }
  Device device() const { return parameters.empty() ? Device::cpu() : parameters[0].device(); }
  std::int64_t count() const {  // numbers in all parameters
    std::int64_t n = 0;
    for (const Parameter& p : parameters) n += numel(p.shape());
    return n;
  }
};

// The attention weights of a layer on a text.
struct AttentionMap {
  std::string layer;  // the path of the attention layer: "transformer.h.0.attn"
  Array weights;      // P, f32 [heads, L, L]: from each token to those it reads; rows add up to 1
};

// Of every flash_attn in the model's forward pass on L tokens (at most the context), in f32 and without
// dropout, first layer first. Needs the memory that flash_attn avoids: layers·heads·L² floats and more.
std::vector<AttentionMap> attention_maps(const LanguageModel& model, const std::vector<std::int32_t>& tokens,
                                         int threads = 0);

}  // namespace tg::nn
