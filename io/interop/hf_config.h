// config.json of a Hugging Face folder: which model its weights belong to.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/nn/models/model_config.h>

namespace tg::io {

struct HfConfig {
  std::string family;     // model_type: "llama", "gpt2", …
  std::string head;       // the class that its weights are of: "LlamaForCausalLM"
  nn::ModelConfig model;  // dropout is 0: for fine-tuning it is chosen anew
  // Ids as generation needs them, within the vocabulary: any of the end tokens ends a text. From config.json,
  // or those of generation_config.json.
  std::vector<std::int64_t> end_tokens = {};
  std::optional<std::int64_t> start_token = {}, padding_token = {};
};

// The model_types that are known: "gpt2, llama, …".
std::string hf_families();

// Reads the keys of transformers 4 and of transformers 5. Keys that are not known are ignored. Throws
// FormatError, beginning with `where`, naming key and value, for a model that is not known or whose results
// would differ from what is said here.
HfConfig parse_hf_config(std::string_view text, const std::string& where);
// Takes the ids of a generation_config.json.
void parse_hf_generation(std::string_view text, const std::string& where, HfConfig& config);

}  // namespace tg::io
