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

// As add_lora() for Model, with `options.targets` matched against the module names of transformers. For
// example, phi3's qkv_proj is one module there and three layers here.
void add_lora(Pretrained& model, const LoraOptions& options);

// Adds the adapter of a PEFT folder to the model, with parameters in f32. Checks everything before the model
// changes. Throws Error for a file that cannot be read. Throws FormatError, in one line with file, key or
// tensor, and value, for:
// - an adapter of a different model;
// - a target without a match;
// - an unsupported setting (DoRA, biases, full modules …).
void load_adapter(Pretrained& model, const std::string& folder);

// Options of save_adapter().
struct SaveAdapterOptions {
  std::optional<DType> dtype = {};  // dtype of the saved tensors; none: that of the parameters
};
// Creates a folder, which must not exist, that PeftModel.from_pretrained() opens. The folder names the
// model's folder as its base. An adapter that was loaded from a folder is saved with the same bytes. Throws
// Error for a model without an adapter, an existing name or a full disk; FormatError for a value that is not
// finite or too large for the dtype.
void save_adapter(const std::string& folder, const Pretrained& model, const SaveAdapterOptions& options = {});

}  // namespace tg::nn
