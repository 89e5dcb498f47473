// adapter_config.json of a PEFT folder: which layers of a model have which adapters.
#pragma once

#include <string>
#include <string_view>

#include <tilegrad/nn/models/lora.h>

namespace tg::io {

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

}  // namespace tg::io
