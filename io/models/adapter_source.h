// AdapterSource: the source of an adapter to be loaded into a model. It is a PEFT folder (load_adapter() in
// io/models/peft.h) or a run of train --lora. This header also declares functions for PEFT folders. Other
// functions merge the adapter of such a run into its model's weights.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/io/models/pretrained.h>
#include <tilegrad/nn/models/lora.h>
#include "io/models/model_source.h"

namespace tg::io {

// ---- adapter_config.json

struct PeftConfig {
  nn::LoraOptions options;
  std::string base;              // base_model_name_or_path: the folder of the model, or its name
  bool fan_in_fan_out = false;   // the model's weights are stored transposed (GPT-2)
  bool targets_complete = true;  // whether options.targets are exactly the modules with an adapter
};

// Parses an adapter_config.json. Throws FormatError for an unsupported or unknown key. Ignores such a key if
// it is null, false or empty, because it then has no effect. The message begins with `where` and contains the
// key and its value.
PeftConfig parse_peft_config(std::string_view text, const std::string& where);
// The inverse of parse_peft_config(), with keys in PEFT's order. If the options have no targets, writes the
// modules as targets.
std::string peft_config_json(const PeftConfig& config, const std::vector<nn::LoraModule>& modules);

// ---- The folder

// Returns a function that finds the module of a Linear layer in transformers, and the layer's rows in that
// module.
nn::ModuleOf module_of(const std::string& family, const nn::ModelConfig& model);

// Creates the folder from a config and from tensors with tilegrad's names ("<module>.lora_A.weight").
void write_peft_folder(const std::string& folder, const std::string& config_text, const TensorMap& tensors);

// ---- Loading an adapter into a model

class AdapterSource {
 public:
  virtual ~AdapterSource() = default;
  // Returns the options with which add_lora() creates the adapter on the model. Throws FormatError if the
  // adapter belongs to a different model.
  virtual nn::LoraOptions options_for(const nn::Pretrained& model) const = 0;
  // Writes the values into an adapter created with these options. Throws FormatError if a number is not
  // finite.
  virtual void load(const nn::Lora& lora) const = 0;
};

// Adds the adapter to the model, in f32. Throws the errors of the source; the model is then unchanged.
void add_adapter(nn::Pretrained& model, const AdapterSource& adapter);

// ---- The adapter of a run of train --lora
//
// A checkpoint of such a run contains the adapter and the location of its base model, as in PEFT. The tensors
// of model.safetensors are the adapter's tensors. The metadata of that file contains the model's settings and
// the adapter_config.json that PEFT would write.

inline constexpr const char* adapter_key = "adapter_config.json";  // key in the metadata
inline bool holds_adapter(const Metadata& metadata) {
  return metadata.contains(adapter_key);
}

// Returns the adapter's config from such metadata. Throws FormatError with a message that begins with
// `where`.
PeftConfig saved_adapter_config(const Metadata& metadata, const std::string& where);

struct SavedAdapter final : AdapterSource {
  std::string where;  // the file, for messages
  PeftConfig config;
  std::string config_text;
  nn::ModelConfig model;  // the model for which it was trained
  SafeTensors file;       // "<module>.lora_A.weight", …

  // Throws FormatError for a checkpoint without an adapter.
  SavedAdapter(SafeTensors file, const std::string& where);
  nn::LoraOptions options_for(const nn::Pretrained& base) const override;
  void load(const nn::Lora& lora) const override;
};

SavedAdapter saved_adapter(const std::string& checkpoint);  // also throws the errors of Checkpoint

// Returns the base model, in which each weight W with an adapter is replaced by W + s·B·A. The sum is
// computed in f32 when it is read, and rounded once when it is written. Throws FormatError if the adapter
// does not fit the model.
ModelSource with_adapter(ModelSource base, SavedAdapter adapter);

}  // namespace tg::io
