// AdapterSource: an adapter on its way into a model, of a PEFT folder (load_adapter() in io/models/peft.h)
// or of a run of train --lora; a model with the latter added to its weights; and what is in a PEFT folder.
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

// ---- An adapter on its way into a model

class AdapterSource {
 public:
  virtual ~AdapterSource() = default;
  // The options by which add_lora() makes the adapter on the model. Throws FormatError for an adapter of
  // another model.
  virtual nn::LoraOptions options_for(const nn::Pretrained& model) const = 0;
  // Writes the values into an adapter that was made so. Throws FormatError for a number that is not finite.
  virtual void load(const nn::Lora& lora) const = 0;
};

// Gives the model the adapter, in f32. Throws as the source does; then the model is as it was.
void add_adapter(nn::Pretrained& model, const AdapterSource& adapter);

// ---- The adapter of a run of train --lora
//
// Such a checkpoint holds the adapter and says where its base is, as PEFT's do: model.safetensors has the
// adapters' tensors, and in its metadata beside the model's settings the adapter_config.json that PEFT would
// write.

inline constexpr const char* adapter_key = "adapter_config.json";  // of the metadata
inline bool holds_adapter(const Metadata& metadata) {
  return metadata.contains(adapter_key);
}

// What such metadata says of the adapter. Throws FormatError, beginning with `where`.
PeftConfig saved_adapter_config(const Metadata& metadata, const std::string& where);

struct SavedAdapter final : AdapterSource {
  std::string where;  // the file, for messages
  PeftConfig config;
  std::string config_text;
  nn::ModelConfig model;  // that it was trained for
  SafeTensors file;       // "<module>.lora_A.weight", …

  // Throws FormatError for a checkpoint without an adapter.
  SavedAdapter(SafeTensors file, const std::string& where);
  nn::LoraOptions options_for(const nn::Pretrained& base) const override;
  void load(const nn::Lora& lora) const override;
};

SavedAdapter saved_adapter(const std::string& checkpoint);  // throws as Checkpoint does, too

// The model of a Hugging Face folder with W + s·B·A for each W that has an adapter: computed in f32 when it
// is read, and rounded once when it is written. Throws the same.
ModelSource with_adapter(ModelSource base, SavedAdapter adapter);

}  // namespace tg::io
