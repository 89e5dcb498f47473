// The adapter of a run of train --lora, and a model with it added to its weights.
//
// Such a checkpoint holds the adapter and says where its base is, as PEFT's do: model.safetensors has the
// adapters' tensors, and in its metadata beside the model's settings the adapter_config.json that PEFT would
// write.
#pragma once

#include <string>

#include <tilegrad/io/interop/pretrained.h>
#include "io/interop/model_source.h"
#include "io/interop/peft_folder.h"

namespace tg::io {

inline constexpr const char* adapter_key = "adapter_config.json";  // of the metadata
inline bool holds_adapter(const Metadata& metadata) {
  return metadata.contains(adapter_key);
}

// What such metadata says of the adapter. Throws FormatError, beginning with `where`.
PeftConfig saved_adapter_config(const Metadata& metadata, const std::string& where);

struct SavedAdapter {
  std::string where;  // the file, for messages
  PeftConfig config;
  std::string config_text;
  nn::ModelConfig model;  // that it was trained for
  SafeTensors file;       // "<module>.lora_A.weight", …
};

// Throws as Checkpoint does, and FormatError for a checkpoint without an adapter.
SavedAdapter saved_adapter(const std::string& checkpoint);
SavedAdapter saved_adapter(SafeTensors file, const std::string& where);

// Gives the model the adapter, in f32. Throws FormatError for an adapter of another model.
void add_adapter(nn::Pretrained& model, const SavedAdapter& adapter);
// The model of a Hugging Face folder with W + s·B·A for each W that has an adapter: computed in f32 when it
// is read, and rounded once when it is written. Throws the same.
ModelSource with_adapter(ModelSource base, SavedAdapter adapter);

}  // namespace tg::io
