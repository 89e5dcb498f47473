// config.json of a Hugging Face folder: the configuration of the model, with its rotary positions. This
// header declares functions that read and write the file. It is written for the first family that can
// represent the model.
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
  std::string head;       // class of the weights: "LlamaForCausalLM"
  nn::ModelConfig model;  // dropout is 0, because it is an option of fine-tuning
  // Token ids for generation, within the vocabulary, from config.json or generation_config.json. A sequence
  // ends with any of the end tokens.
  std::vector<std::int64_t> end_tokens = {};
  std::optional<std::int64_t> start_token = {}, padding_token = {};
};

// Returns the supported model_types: "gpt2, llama, …".
std::string hf_families();

// Reads the keys of transformers 4 and transformers 5. Ignores unknown keys. Throws FormatError for an
// unknown model and for an unsupported key that would change results. The message begins with `where` and
// contains the key and its value.
HfConfig parse_hf_config(std::string_view text, const std::string& where);
// Sets the ids from a generation_config.json.
void parse_hf_generation(std::string_view text, const std::string& where, HfConfig& config);

// ---- Writing

// Returns the config with which a Hugging Face class computes the same results as the model. Uses the first
// family that can represent the model, or the named family. A GPT without biases is written with biases of
// zero. Throws FormatError if no family can represent the model. The message begins with `where` and lists
// the settings that the closest family does not have.
HfConfig hf_config_for(const nn::ModelConfig& model, const std::string& where,
                       const std::string& family = "");
// Whether the config describes the model. The settings may be written in different ways.
bool is_config_of(const HfConfig& config, const nn::ModelConfig& model);

// Return the content of config.json and generation_config.json, with the keys of transformers 5. `dtype` is
// the dtype of the weights.
std::string hf_config_json(const HfConfig& config, DType dtype);
std::string hf_generation_json(const HfConfig& config);
// Returns a config.json with this dtype and all other keys unchanged.
std::string hf_config_with_dtype(std::string_view text, const std::string& where, DType dtype);
std::string_view hf_dtype_name(DType dtype);  // "bfloat16"

// ---- Families: a model is written for the first family that can represent it

// Returns the model in the normal form of config.json: default sizes are filled in, and settings without
// effect have their default values. A GPT has biases.
nn::ModelConfig hf_plain(nn::ModelConfig model);

// The families that hf_model_text() can write, in order of preference.
std::vector<std::string> hf_written_families();
// Returns the config.json of a model in normal form, without ids and dtype. Omits settings that the family
// lacks. Returns nothing if the family has a different architecture.
std::optional<std::string> hf_model_text(const std::string& family, const nn::ModelConfig& plain);

// ---- Rotary positions: rope_parameters, or rope_theta and rope_scaling

// Defaults of a family's files.
struct HfUsualRope {
  double theta = 10000;
  double context = 0;  // max_position_embeddings
  // The rules of Phi 3: a part of each head may be rotated, "su" and "yarn" are former names of "longrope",
  // and the original context is 4096.
  bool is_phi3 = false;
};

struct HfRope {
  double theta = 10000;
  nn::RopeScaling scaling = {};
  double score_scale = 1;  // factor of the scale of scores in DeepSeek: m(mscale_all_dim)²
  double share = 1;        // fraction of each head that is rotated: partial_rotary_factor
};

// Returns a fraction part/whole. A reader that multiplies it by `whole` and rounds down gets `part` again.
double hf_share(std::int64_t part, std::int64_t whole);

// The growth m(mscale) of the scores with the factor in YaRN.
double yarn_growth(double factor, double mscale);

// Reads the rotary positions. Throws FormatError for an unknown type.
HfRope hf_rope(const JsonObject& config, const HfUsualRope& usual);
// Does the same for one kind of layers. `rope` is the object for these layers in rope_parameters, or
// rope_scaling.
HfRope hf_rope_of(const JsonObject& rope, const JsonObject& config, const HfUsualRope& usual);

// These functions write rotary positions. hf_rope_json() returns rope_parameters of transformers 5. The next
// function returns rope_scaling of transformers 4, or null.
std::string hf_rope_json(const HfRope& rope);
std::string hf_rope_scaling_json(const HfRope& rope);

}  // namespace tg::io
