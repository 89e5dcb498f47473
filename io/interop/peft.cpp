#include <tilegrad/io/interop/peft.h>

#include <tilegrad/core/base/error.h>
#include "io/checkpoints/tensor_values.h"
#include "io/interop/peft_folder.h"

namespace tg::nn {

void add_lora(Pretrained& model, const LoraOptions& options) {
  add_lora(model.model, options, io::module_of(model.info.family, model.info.config));
}

void load_adapter(Pretrained& model, const std::string& path) {
  const io::PeftFolder folder(path);
  const ModuleOf module_of = io::module_of(model.info.family, model.info.config);
  add_lora(model.model, folder.options_for(model.model.linears(), module_of), module_of);
  try {
    folder.load(*model.model.lora());
  } catch (...) {
    remove_lora(model.model);
    throw;
  }
}

void save_adapter(const std::string& folder, const Pretrained& model, const SaveAdapterOptions& options) {
  const Lora* lora = model.model.lora();
  if (!lora)
    throw Error("[save_adapter] the model has no adapter: add_lora() or load_adapter() gives it one");
  if (options.dtype && !is_float(*options.dtype))
    throw DTypeError("[save_adapter] expected a floating dtype, got " + std::string(name_of(*options.dtype)));
  std::vector<Array> values;
  values.reserve(lora->parameters().size());
  io::TensorMap tensors;
  for (const Parameter& p : lora->parameters()) {
    Array& value = values.emplace_back(p.read());
    const auto view = [&] {
      return io::TensorView{
          value.dtype(), {value.shape().begin(), value.shape().end()}, {value.raw(), value.bytes()}};
    };
    if (options.dtype && *options.dtype != value.dtype())
      value = io::converted(view(), value.shape(), *options.dtype, "[save_adapter] " + folder, p.name());
    tensors[p.name()] = view();
  }
  std::string config = lora->options.origin;
  if (config.empty())
    config = io::peft_config_json(
        {.options = lora->options, .base = model.info.folder, .fan_in_fan_out = model.info.family == "gpt2"},
        lora->modules);
  io::write_peft_folder(folder, config, tensors);
}

}  // namespace tg::nn
