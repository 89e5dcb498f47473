// The attention weights of each layer of a model on a text.
#pragma once

#include <tilegrad/nn/models/language_model.h>

namespace tg::nn {

struct AttentionMap {
  std::string layer;  // the path of the attention layer: "transformer.h.0.attn"
  Array weights;      // P, f32 [heads, L, L]: from each token to those it reads; rows add up to 1
};

// Of every flash_attn in the model's forward pass on L tokens (at most the context), in f32 and without
// dropout, first layer first. Needs the memory that flash_attn avoids: layers·heads·L² floats and more.
std::vector<AttentionMap> attention_maps(const LanguageModel& model, const std::vector<std::int32_t>& tokens,
                                         int threads = 0);

}  // namespace tg::nn
