// PEFT folders: adapter_config.json, which says which layers of a model have which adapters, and the writing
// of one. load_adapter() (io/interop/peft.h) reads one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/io/files/safetensors.h>
#include <tilegrad/nn/models/lora.h>
#include "io/interop/hf_config.h"

namespace tg::io {

// ---- adapter_config.json

struct PeftConfig {
  nn::LoraOptions options;
  std::string base;             // base_model_name_or_path: the folder of the model, or its name
  bool fan_in_fan_out = false;  // the model's weights lie transposed (GPT-2)
  bool targets_complete =
      true;  // options.targets are the modules with an adapter: all of them, and no others
};

// Keys that change results are understood or refused, whether they are known or not; those that are null,
// false or empty change none. Throws FormatError, beginning with `where`, naming key and value.
PeftConfig parse_peft_config(std::string_view text, const std::string& where);
// The inverse, in PEFT's order. Options without targets are given those of the modules.
std::string peft_config_json(const PeftConfig& config, const std::vector<nn::LoraModule>& modules);

// ---- The folder

// Which module of transformers a Linear layer of the model is, or is rows of.
nn::ModuleOf module_of(const std::string& family, const nn::ModelConfig& model);

// Makes the folder of a config and tensors by our names ("<module>.lora_A.weight").
void write_peft_folder(const std::string& folder, const std::string& config_text, const TensorMap& tensors);

}  // namespace tg::io
