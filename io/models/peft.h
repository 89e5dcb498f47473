// LoRA adapters as PEFT folders, adapter_config.json and adapter_model.safetensors:
//
//   auto model = tg::nn::from_pretrained("SmolLM-135M");
//   tg::nn::load_adapter(model, "my-adapter");
//   ... trains, generates ...
//   tg::nn::save_adapter("my-better-adapter", model);
//   tg::nn::merge_lora(model.model);  // or: a model of its own, for save_pretrained()
#pragma once

#include <string>

#include <tilegrad/io/models/pretrained.h>
#include <tilegrad/nn/models/lora.h>

namespace tg::nn {

// add_lora() by the names that modules have in transformers: phi3's qkv_proj is one module, three layers
// here.
void add_lora(Pretrained& model, const LoraOptions& options);

// Gives the model the adapter of a folder, in f32. Everything is checked before the model changes. Throws
// Error for a file that cannot be read, FormatError in one line with file, key or tensor, and value: an
// adapter of another model, a target that matches nothing, a setting that is not supported (DoRA, biases,
// whole modules …).
void load_adapter(Pretrained& model, const std::string& folder);

struct SaveAdapterOptions {
  std::optional<DType> dtype = {};  // of the tensors; none: the parameters'
};
// Makes a folder, which must not exist, that PeftModel.from_pretrained() opens; it names the model's folder
// as its base. An adapter that came from a folder goes out with the same bytes. Throws Error for a model
// without an adapter, a name that is taken, a disk that is full; FormatError for a number that is not finite
// or too large for the dtype.
void save_adapter(const std::string& folder, const Pretrained& model, const SaveAdapterOptions& options = {});

}  // namespace tg::nn
