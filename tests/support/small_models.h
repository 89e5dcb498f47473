// Small models of each architecture.
#pragma once

#include <vector>

#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/models/model_config.h>

namespace tg::testing {

struct SmallModel {
  const char* name;
  nn::ModelConfig config;
};

inline std::vector<SmallModel> small_models(std::int64_t context) {
  const nn::ModelConfig base{
      .vocabulary = 61, .context = context, .layers = 2, .heads = 4, .width = 64, .std = 0.1};
  std::vector<SmallModel> all = {
      {"GPT", base}, {"Llama", base}, {"DeepSeek", base}, {"DeepSeek, query latent", base}};
  all[1].config.architecture = nn::Llama{.key_heads = 2};
  all[1].config.tied_head = false;
  all[2].config.architecture = nn::DeepSeek{.latent = 16};
  all[3].config.architecture = nn::DeepSeek{.latent = 16, .query_latent = 24};
  all[3].config.tied_head = false;
  return all;
}

}  // namespace tg::testing
