// LoRA adapters in PEFT folders: adapter_config.json and adapter_model.safetensors.
//
//   auto model = tg::nn::from_pretrained("SmolLM-135M");
//   tg::nn::load_adapter(model, "my-adapter");
//   ... trains, generates ...
//   tg::nn::save_adapter("my-better-adapter", model);
//   tg::nn::merge_lora(model.model);  // after it, save_pretrained() writes a model without adapters
#pragma once

#include <string>

#include <tilegrad/io/models/pretrained.h>
#include <tilegrad/nn/models/lora.h>

namespace tg::nn {

// Does the same as add_lora() for Model, but `options.targets` are names of modules in transformers. For
// example, phi3's qkv_proj is one module in transformers and three layers in this library.
void add_lora(Pretrained& model, const LoraOptions& options);

// Adds the adapter of a PEFT folder to the model, with parameters in f32. Checks everything before the model
// changes. Throws Error if a file cannot be read. Throws FormatError in the following cases. The message is
// one line with the file, the key or tensor, and the value:
// - an adapter of a different model;
// - a target without a match;
// - an unsupported setting (DoRA, biases, full modules …).
void load_adapter(Pretrained& model, const std::string& folder);

// Options of save_adapter().
struct SaveAdapterOptions {
  std::optional<DType> dtype = {};  // dtype of the saved tensors; none: the parameters' dtype
};
// Creates a folder that PeftModel.from_pretrained() can open. The folder must not exist. It refers to the
// model's folder as the base model. An adapter that was loaded from a folder is saved with the same bytes.
// Throws Error if the model has no adapter, if the folder exists, or if the disk is full. Throws FormatError
// if a value is not finite or is too large for the dtype.
void save_adapter(const std::string& folder, const Pretrained& model, const SaveAdapterOptions& options = {});

}  // namespace tg::nn
