// Reads PEFT folders into a model, and writes them.
#include <algorithm>
#include <filesystem>
#include <set>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/models/peft.h>
#include "io/checkpoints/tensor_values.h"
#include "io/files/staged_folder.h"
#include "io/models/adapter_source.h"
#include "io/models/model_source.h"
#include "io/models/tensor_names.h"

namespace tg::io {

namespace {

constexpr const char* adapter_reader = "load_adapter";
constexpr const char* adapter_writer = "save_adapter";
constexpr const char* config_file = "adapter_config.json";
constexpr const char* tensor_file = "adapter_model.safetensors";
constexpr const char* root = "base_model.model.";  // prefix of names in PEFT's files
// The suffix of the name of the head's weight. PEFT saves that weight of the model together with an adapter
// of the head.
constexpr std::string_view base_end = ".base_layer.weight";

std::string reading(const std::string& what) {
  return "[" + std::string(adapter_reader) + "] " + what;
}
std::string saving_adapter(const std::string& what) {
  return "[" + std::string(adapter_writer) + "] " + what;
}

bool has_file(const std::string& folder, const char* name) {
  std::error_code error;
  return std::filesystem::exists(folder + "/" + name, error);
}

std::string with_adapter_files(const std::string& folder) {
  if (!has_file(folder, config_file))
    throw FormatError(reading(folder) + ": has no " + config_file +
                      (has_file(folder, "config.json") ? ", but a config.json: it is a model" : "") +
                      ", expected a PEFT folder");
  if (!has_file(folder, tensor_file))
    throw FormatError(
        reading(folder) + ": has no " + tensor_file +
        (has_file(folder, "adapter_model.bin")
             ? ", only adapter_model.bin, a pickle, which is a program and is not run: save the "
               "adapter as safetensors"
             : ""));
  return folder;
}

// An open PEFT folder: its config has been read and its tensors are mapped.
class PeftFolder final : public AdapterSource, StoredWeights {
 public:
  // Throws Error if a file cannot be read. Throws FormatError for an unsupported setting, or a tensor that is
  // not a LoRA weight.
  explicit PeftFolder(const std::string& path);

  // Throws FormatError if a target is not a module, if the targets differ from the modules with tensors, or
  // if a tensor has a wrong shape.
  nn::LoraOptions options_for(const nn::Pretrained& model) const override;
  // PEFT saves the head's weight with an adapter of the head. Throws FormatError if that weight is in the
  // folder and differs from the model's weight.
  void load(const nn::Lora& lora) const override;

 private:
  std::optional<StoredTensor> stored(const std::string& parameter) const override;
  const TensorView& tensor(const std::string& parameter) const;
  std::string where(const char* file) const;
  void check_base_weight(const nn::Lora& lora, const std::string& module) const;

  std::string path_, config_text_;
  PeftConfig config_;
  std::set<std::string> modules_;       // modules with an adapter
  std::set<std::string> base_weights_;  // modules for which the folder has the model's weight
  MappedSafeTensors file_;
};

PeftFolder::PeftFolder(const std::string& path)
    : path_(with_adapter_files(path)),
      config_text_(read_file(path + "/" + config_file, adapter_reader)),
      config_(parse_peft_config(config_text_, where(config_file))),
      file_(map_safetensors(path + "/" + tensor_file, adapter_reader)) {
  for (const auto& [name, tensor] : file_.tensors) {
    const std::string_view begin = root;
    bool is_known = false;
    for (const std::string_view end :
         {std::string_view(".lora_A.weight"), std::string_view(".lora_B.weight"), base_end}) {
      if (!name.starts_with(begin) || !name.ends_with(end) || name.size() <= begin.size() + end.size())
        continue;
      const std::string module = name.substr(begin.size(), name.size() - begin.size() - end.size());
      (end == base_end ? base_weights_ : modules_).insert(module);
      is_known = true;
    }
    if (!is_known)
      throw FormatError(where(tensor_file) + ": has a tensor " + name + ", expected " + root +
                        "MODULE.lora_A.weight or lora_B.weight");
  }
  if (modules_.empty()) throw FormatError(where(tensor_file) + ": has no tensors");
}

std::string PeftFolder::where(const char* file) const {
  return reading(path_ + "/" + file);
}

const TensorView& PeftFolder::tensor(const std::string& parameter) const {
  const auto found = file_.tensors.find(root + parameter);
  if (found == file_.tensors.end())
    throw FormatError(where(tensor_file) + ": has no tensor " + root + parameter);
  return found->second;
}

nn::LoraOptions PeftFolder::options_for(const nn::Pretrained& model) const {
  nn::LoraOptions options = config_.options;
  if (!config_.targets_complete) options.targets.assign(modules_.begin(), modules_.end());
  // peft ignores keys of patterns that match no module with an adapter.
  const auto names_none = [&](const auto& entry) {
    return std::ranges::none_of(modules_, [&](const std::string& module) {
      return module == entry.first || module.ends_with("." + entry.first);
    });
  };
  std::erase_if(options.ranks, names_none);
  std::erase_if(options.alphas, names_none);
  std::vector<nn::LoraModule> chosen;
  try {
    chosen =
        nn::lora_modules(model.model.linears(), options, module_of(model.info.family, model.info.config));
  } catch (const Error& e) {
    const std::string what = e.what(), prefix = "[lora] ";
    throw FormatError(where(config_.targets_complete ? config_file : tensor_file) + ": " +
                      (what.starts_with(prefix) ? what.substr(prefix.size()) : what));
  }
  std::set<std::string> names;
  for (const nn::LoraModule& m : chosen) {
    names.insert(m.name);
    const auto check = [&](const char* end, std::int64_t rows, std::int64_t columns, const char* by) {
      const std::string name = m.name + end;
      const TensorView& t = tensor(name);
      if (t.shape == std::vector{rows, columns} && is_float(t.dtype)) return;
      throw FormatError(where(tensor_file) + ": " + root + name + " is " + std::string(name_of(t.dtype)) +
                        " " + shape_text(t.shape) + ", expected a floating type and " +
                        shape_text({rows, columns}) + " by " + by);
    };
    check(".lora_A.weight", m.rank, m.in, "the rank in adapter_config.json and the model's layer");
    check(".lora_B.weight", m.out, m.rank, "the model's layer and the rank in adapter_config.json");
  }
  for (const std::string& name : modules_)
    if (!names.contains(name))
      throw FormatError(where(tensor_file) + ": has an adapter of " + name +
                        ", which is none of the model's layers that target_modules of " + config_file +
                        " names");
  options.origin = config_text_;
  return options;
}

std::optional<StoredTensor> PeftFolder::stored(const std::string& parameter) const {
  return StoredTensor{&file_.file, tensor(parameter), false, where(tensor_file)};
}

void PeftFolder::load(const nn::Lora& lora) const {
  io::load(*this, where(tensor_file), lora.parameters());
  for (const std::string& module : base_weights_) check_base_weight(lora, module);
}

void PeftFolder::check_base_weight(const nn::Lora& lora, const std::string& module) const {
  const std::string name = module + std::string(base_end);
  const auto found =
      std::ranges::find_if(lora.modules, [&](const nn::LoraModule& m) { return m.name == module; });
  if (found == lora.modules.end() || !found->parts[0].linear.is_head)
    throw FormatError(where(tensor_file) + ": has a tensor " + root + name +
                      ", expected weights of the model only of its head, with an adapter");
  const Parameter weight = found->parts[0].linear.weight.parameter();
  const TensorView& t = tensor(name);
  const Array own = weight.read();
  const bool fits =
      t.shape == std::vector<std::int64_t>(own.shape().begin(), own.shape().end()) && is_float(t.dtype);
  const Array theirs =
      fits ? converted(t, own.shape(), own.dtype(), where(tensor_file), root + name) : Array();
  if (!fits || !std::equal(own.raw(), own.raw() + own.bytes(), theirs.raw()))
    throw FormatError(where(tensor_file) + ": " + root + name + " has different values from " +
                      weight.name() + " of the model: expected the adapter's own base");
}

}  // namespace

nn::ModuleOf module_of(const std::string& family, const nn::ModelConfig& model) {
  return [=](const nn::LinearSlot& linear) -> nn::ModuleRows {
    const std::string weight = ".weight";
    const HfTensor t = hf_tensor(family, model, linear.path + weight, {linear.out, linear.in});
    return {t.name.substr(0, t.name.size() - weight.size()), t.first_row, t.shape[t.is_transposed ? 1 : 0]};
  };
}

void write_peft_folder(const std::string& folder, const std::string& config_text, const TensorMap& tensors) {
  TensorMap named;
  for (const auto& [name, tensor] : tensors) {
    require_finite(tensor.bytes, tensor.dtype, saving_adapter(name));
    named[root + name] = tensor;
  }
  StagedFolder staged(folder, adapter_writer);
  const std::string_view config = config_text;
  write_new_file(staged.path(config_file), {&config, 1}, adapter_writer);
  const SafeTensorsContent content = safetensors_content(named, {{"format", "pt"}}, saving_adapter(folder));
  write_new_file(staged.path(tensor_file), content.pieces(), adapter_writer);
  staged.publish();
}

}  // namespace tg::io

namespace tg::nn {

void add_lora(Pretrained& model, const LoraOptions& options) {
  add_lora(model.model, options, io::module_of(model.info.family, model.info.config));
}

void load_adapter(Pretrained& model, const std::string& path) {
  io::add_adapter(model, io::PeftFolder(path));
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
    if (options.dtype && *options.dtype != value.dtype())
      value = io::converted(io::view_of(value), value.shape(), *options.dtype, "[save_adapter] " + folder,
                            p.name());
    tensors[p.name()] = io::view_of(value);
  }
  std::string config = lora->options.origin;
  if (config.empty())
    config = io::peft_config_json(
        {.options = lora->options, .base = model.info.folder, .fan_in_fan_out = model.info.family == "gpt2"},
        lora->modules);
  io::write_peft_folder(folder, config, tensors);
}

}  // namespace tg::nn
