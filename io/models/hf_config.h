// config.json of a Hugging Face folder: which model its weights belong to, and its rotary positions. It is
// read, and written for the first family that has the model's settings.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/nn/models/model_config.h>
#include <tilegrad/nn/models/rotary_stack.h>
#include "io/files/json_object.h"

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

// ---- Families: which one a model goes out as, the first whose config.json, read again, says the model's
// settings

// The same model in the one form that a config.json gives it: sizes that stand for others filled in, settings
// that change nothing as they are where nothing is said. A GPT has biases.
nn::ModelConfig hf_plain(nn::ModelConfig model);

// The families that hf_model_text() writes, in the order in which one is looked for.
std::vector<std::string> hf_written_families();
// config.json of a model in that form, without ids and dtype; nothing if the family is of another
// architecture. What the family cannot say is left out.
std::optional<std::string> hf_model_text(const std::string& family, const nn::ModelConfig& plain);

// ---- Rotary positions: rope_parameters, or rope_theta and rope_scaling

// What a family's files mean where they say nothing.
struct HfUsualRope {
  double theta = 10000;
  double context = 0;  // max_position_embeddings
  // Phi 3: a part of each head is rotated, "su" and "yarn" are earlier names of "longrope", and the first
  // context is 4096.
  bool is_phi3 = false;
};

struct HfRope {
  double theta = 10000;
  nn::RopeScaling scaling = {};
  double score_scale = 1;  // factor of the scores' scale, DeepSeek's: m(mscale_all_dim)²
  double share = 1;        // of each head, that is rotated: partial_rotary_factor
};

// The share of a whole that a part is, so that a reader who rounds down finds the part again.
double hf_share(std::int64_t part, std::int64_t whole);

// YaRN's growth of the scores with the factor, m(mscale).
double yarn_growth(double factor, double mscale);

// Throws FormatError for a type that is not known.
HfRope hf_rope(const JsonObject& config, const HfUsualRope& usual);
// The same of one kind of layers, where `rope` is their part of rope_parameters, or rope_scaling.
HfRope hf_rope_of(const JsonObject& rope, const JsonObject& config, const HfUsualRope& usual);

// The inverse: rope_parameters of transformers 5, and rope_scaling of transformers 4, or null.
std::string hf_rope_json(const HfRope& rope);
std::string hf_rope_scaling_json(const HfRope& rope);

}  // namespace tg::io
