// PeftFolder: a PEFT folder, opened; and the writing of one. Its adapter_config.json says which layers of a
// model have which adapters.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/core/graph/parameter.h>
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

class PeftFolder {
 public:
  // Reads the config and maps the tensors. Throws Error for a file that cannot be read, FormatError for a
  // setting that is not supported, and for a tensor that is no LoRA weight.
  explicit PeftFolder(const std::string& path);

  const PeftConfig& config() const { return config_; }

  // The options by which add_lora() makes this adapter on a model of such layers. Throws FormatError unless
  // each target is a module, the modules with tensors are the targets, and the tensors have the shapes of
  // both.
  nn::LoraOptions options_for(const std::vector<nn::LinearPlace>& linears,
                              const nn::ModuleOf& module_of) const;
  // Writes the values into the parameters of an adapter of such modules. Throws FormatError if the file has
  // the head's own weight, as PEFT saves it with an adapter of the head, and the model has another one.
  void load(const nn::Lora& lora) const;

 private:
  const TensorView& tensor(const std::string& parameter) const;
  std::string where(const char* file) const;
  void check_base_weight(const nn::Lora& lora, const std::string& module) const;

  std::string path_, config_text_;
  PeftConfig config_;
  std::set<std::string> modules_;       // with an adapter
  std::set<std::string> base_weights_;  // with the model's own weight
  MappedSafeTensors file_;
};

// Makes the folder of a config and tensors by our names ("<module>.lora_A.weight").
void write_peft_folder(const std::string& folder, const std::string& config_text, const TensorMap& tensors);

}  // namespace tg::io
