// What Llama and its descendants have in common: rotary positions, RMSNorm and SwiGLU under Hugging Face's
// names, around an attention of their own.
#pragma once

#include <tilegrad/nn/models/model_config.h>

namespace tg::nn {

// 8/3 of the width, rounded up to a multiple of 8: about as many parameters as GPT's MLP.
std::int64_t swiglu_width(std::int64_t width);

// model.embed_tokens; model.layers.0 with input_layernorm, self_attn, post_attention_layernorm and mlp; …;
// model.norm; lm_head unless it is tied. `mlp_width` as in Llama.
ModelParts rotary_stack(const Path& at, const ModelConfig& c, std::int64_t mlp_width,
                        const std::function<Layer(const Path& at)>& attention);
// Throws ShapeError for heads without rotary pairs and a width that is not positive, Error for a theta that
// is not positive.
void check_rotary_stack(const ModelConfig& c, std::int64_t mlp_width, double theta);

Setting mlp_width_setting();
Setting theta_setting();

}  // namespace tg::nn
