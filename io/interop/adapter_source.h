// AdapterSource: an adapter on its way into a model, of a PEFT folder (peft_folder.h) or of a run of train
// --lora; and a model with the latter added to its weights.
#pragma once

#include <string>

#include <tilegrad/io/interop/pretrained.h>
#include "io/interop/model_source.h"
#include "io/interop/peft_folder.h"

namespace tg::io {

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
