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

// ---- The way out

// The config by which a Hugging Face class computes what the model does: of the first family that can, or of
// the one named. A GPT without biases is one with biases of zero. Throws FormatError, beginning with `where`,
// that names the settings which no family has.
HfConfig hf_config_for(const nn::ModelConfig& model, const std::string& where,
                       const std::string& family = "");
// Whether the config describes the model, however the settings of both say it.
bool is_config_of(const HfConfig& config, const nn::ModelConfig& model);

// The texts of config.json and generation_config.json, with the keys of transformers 5. `dtype` is that of
// the weights.
std::string hf_config_json(const HfConfig& config, DType dtype);
std::string hf_generation_json(const HfConfig& config);
// A config.json with that dtype, and all other keys as they are.
std::string hf_config_with_dtype(std::string_view text, const std::string& where, DType dtype);
std::string_view hf_dtype_name(DType dtype);  // "bfloat16"

}  // namespace tg::io
