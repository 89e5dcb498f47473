#include "io/models/adapter_source.h"

#include <cstring>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/checkpoints/model_file.h>
#include <tilegrad/io/models/peft.h>
#include "io/checkpoints/tensor_check.h"

namespace tg::io {

namespace {

Array array_of_rows(const TensorView& t, std::int64_t first, std::int64_t rows) {
  const std::size_t row = t.bytes.size() / static_cast<std::size_t>(t.shape[0]);
  Array a({rows, t.shape[1]}, t.dtype);
  std::memcpy(a.raw(), t.bytes.data() + static_cast<std::size_t>(first) * row, a.bytes());
  return a;
}

void check_base(const SavedAdapter& adapter, const nn::ModelConfig& base, const std::string& folder) {
  const Metadata got = to_metadata(base);
  for (const auto& [key, value] : to_metadata(adapter.model))
    if (const auto found = got.find(key); found == got.end() || found->second != value)
      throw FormatError(adapter.where + ": the adapter is of a model with " + key + " " + value + ", " +
                        folder + " has " + (found == got.end() ? "none" : found->second));
}

// Returns the modules of the adapter. Throws FormatError if its tensors are not exactly the tensors of these
// modules.
std::vector<nn::LoraModule> modules_of(const SavedAdapter& adapter, const std::string& family) {
  nn::Params counted = nn::Params::counting();
  adapter.model.architecture.make(counted, adapter.model);
  std::vector<nn::LoraModule> modules;
  try {
    modules = nn::lora_modules(counted.linears(), adapter.config.options, module_of(family, adapter.model));
  } catch (const Error& e) {
    throw FormatError(adapter.where + ": " + e.what());
  }
  for (const nn::LoraModule& m : modules) {
    tensor_like(adapter.file.tensors, m.name + ".lora_A.weight", {m.rank, m.in}, f32, adapter.where);
    tensor_like(adapter.file.tensors, m.name + ".lora_B.weight", {m.out, m.rank}, f32, adapter.where);
  }
  if (2 * modules.size() != adapter.file.tensors.size())
    throw FormatError(adapter.where + ": has " + std::to_string(adapter.file.tensors.size()) +
                      " tensors, expected 2 for each of " + std::to_string(modules.size()) + " modules");
  return modules;
}

class MergedReader final : public WeightReader {
 public:
  MergedReader(std::unique_ptr<WeightReader> base, SavedAdapter adapter, const std::string& family)
      : base_(std::move(base)), adapter_(std::move(adapter)) {
    for (const nn::LoraModule& m : modules_of(adapter_, family))
      for (const nn::LoraModule::Part& p : m.parts)
        adapted_[p.linear.path + ".weight"] = {m.name, p.first_row, p.linear.out, m.scale};
  }
  DType dtype(const std::string& parameter) const override { return base_->dtype(parameter); }
  TensorView read(const std::string& parameter) const override {
    const TensorView w = base_->read(parameter);
    const auto found = adapted_.find(parameter);
    if (found == adapted_.end()) return w;
    const Adapted& it = found->second;
    const TensorView& a = adapter_.file.tensors.at(it.module + ".lora_A.weight");
    const TensorView& b = adapter_.file.tensors.at(it.module + ".lora_B.weight");
    merged_ = nn::merged_weight(array_of_rows(w, 0, w.shape[0]), array_of_rows(b, it.first_row, it.rows),
                                array_of_rows(a, 0, a.shape[0]), it.scale, compute_type(w.dtype));
    return {merged_.dtype(), w.shape, {merged_.raw(), merged_.bytes()}};
  }

 private:
  struct Adapted {
    std::string module;
    std::int64_t first_row, rows;
    double scale;
  };
  std::unique_ptr<WeightReader> base_;
  SavedAdapter adapter_;
  std::map<std::string, Adapted> adapted_;  // by parameter name
  mutable Array merged_;
};

}  // namespace

PeftConfig saved_adapter_config(const Metadata& metadata, const std::string& where) {
  const auto text = metadata.find(adapter_key);
  if (text == metadata.end()) throw FormatError(where + ": has no adapter, expected a run of train --lora");
  return parse_peft_config(text->second, where + ": " + adapter_key);
}

SavedAdapter::SavedAdapter(SafeTensors from, const std::string& path)
    : where(path),
      config(saved_adapter_config(from.metadata, path)),
      config_text(from.metadata.at(adapter_key)),
      model(model_config(from.metadata, path)),
      file(std::move(from)) {}

nn::LoraOptions SavedAdapter::options_for(const nn::Pretrained& base) const {
  check_base(*this, base.info.config, base.info.folder);
  modules_of(*this, base.info.family);
  return config.options;
}

void SavedAdapter::load(const nn::Lora& lora) const {
  const std::vector<Parameter> parameters = lora.parameters();
  for (Parameter p : parameters) {
    const TensorView& t = file.tensors.at(p.name());
    p.write(array_of_rows(t, 0, t.shape[0]));
  }
  check_finite(parameters, where);
}

void add_adapter(nn::Pretrained& model, const AdapterSource& adapter) {
  nn::add_lora(model, adapter.options_for(model));
  try {
    adapter.load(*model.model.lora());
  } catch (...) {
    nn::remove_lora(model.model);
    throw;
  }
}

SavedAdapter saved_adapter(const std::string& path) {
  const Checkpoint checkpoint(path);
  const std::string name = "model.safetensors";
  return {checkpoint.load(name), checkpoint.directory() + "/" + name};
}

ModelSource with_adapter(ModelSource base, SavedAdapter adapter) {
  check_base(adapter, base.config, base.from);
  const std::string family = config_in(base.files, base.from).family;
  base.weights = std::make_unique<MergedReader>(std::move(base.weights), std::move(adapter), family);
  return base;
}

}  // namespace tg::io
