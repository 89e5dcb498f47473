#include "io/interop/model_source.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/checkpoints/model_file.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include "io/checkpoints/tensor_check.h"
#include "io/checkpoints/tensor_values.h"
#include "io/interop/gguf.h"

namespace tg::io {

namespace {

class ParameterReader final : public WeightReader {
 public:
  explicit ParameterReader(const std::vector<Parameter>& parameters) {
    for (const Parameter& p : parameters) parameters_[p.name()] = p;
  }
  DType dtype(const std::string& parameter) const override { return parameters_.at(parameter).dtype(); }
  TensorView read(const std::string& parameter) override {
    value_ = parameters_.at(parameter).read();
    return {value_.dtype(), {value_.shape().begin(), value_.shape().end()}, {value_.raw(), value_.bytes()}};
  }

 private:
  std::map<std::string, Parameter> parameters_;
  Array value_;
};

class CheckpointReader final : public WeightReader {
 public:
  explicit CheckpointReader(SafeTensors file) : file_(std::move(file)) {}
  DType dtype(const std::string& parameter) const override { return file_.tensors.at(parameter).dtype; }
  TensorView read(const std::string& parameter) override { return file_.tensors.at(parameter); }

 private:
  SafeTensors file_;
};

class FolderReader final : public WeightReader {
 public:
  explicit FolderReader(std::unique_ptr<HfFolder> folder) : folder_(std::move(folder)) {}
  DType dtype(const std::string& parameter) const override { return folder_->values(parameter).tensor.dtype; }
  TensorView read(const std::string& parameter) override {
    HfFolder::Values values = folder_->values(parameter);
    TensorView& t = values.tensor;
    folder_->read(values, bytes_);
    t.bytes = bytes_;
    if (values.is_transposed) {
      bytes_ = transposed(t);
      std::swap(t.shape[0], t.shape[1]);
      t.bytes = bytes_;
    }
    return t;
  }

 private:
  std::unique_ptr<HfFolder> folder_;
  std::vector<std::byte> bytes_;  // of the tensor that was read last
};

}  // namespace

std::vector<DType> ModelSource::dtypes() const {
  std::set<DType> all;
  config.each_parameter([&](const std::string& name, const Shape&) { all.insert(weights->dtype(name)); });
  return {all.begin(), all.end()};
}

void require_tokenizer_fits(const text::Tokenizer& tokenizer, const nn::ModelConfig& config,
                            const std::string& where) {
  if (tokenizer.size() > config.vocabulary)
    throw FormatError(where + " the tokenizer has " + std::to_string(tokenizer.size()) +
                      " tokens, the model " + std::to_string(config.vocabulary));
}

std::string names_of(const std::vector<DType>& dtypes) {
  std::string text;
  for (const DType t : dtypes) text += (text.empty() ? "" : " and ") + std::string(name_of(t));
  return text;
}

ModelSource source_of(const std::vector<Parameter>& parameters, const nn::ModelConfig& config) {
  std::map<std::string, const Parameter*> named;
  for (const Parameter& p : parameters) named[p.name()] = &p;
  std::size_t found = 0;
  config.each_parameter([&](const std::string& name, const Shape& shape) {
    const auto p = named.find(name);
    if (p == named.end() || p->second->shape() != shape)
      throw Error("[save_pretrained] the config has a parameter " + name + " " + shape.text() +
                  ", the model has " + (p == named.end() ? "none" : p->second->shape().text()));
    ++found;
  });
  if (found != parameters.size())
    throw Error("[save_pretrained] the model has " + std::to_string(parameters.size()) +
                " parameters, the config " + std::to_string(found));
  Metadata settings;
  add_settings(parameters, settings);
  check_settings(config, settings, "[save_pretrained] the config");
  return {.from = "model", .config = config, .weights = std::make_unique<ParameterReader>(parameters)};
}

ModelSource source_of_checkpoint(const std::string& path) {
  const Checkpoint checkpoint(path);
  return source_of_checkpoint(checkpoint.load("model.safetensors"), checkpoint.directory());
}

ModelSource source_of_checkpoint(SafeTensors file, const std::string& directory) {
  const std::string where = directory + "/model.safetensors";
  ModelSource source{.from = directory, .config = model_config(file, where)};
  source.files = nn::folder_files(file.metadata);
  source.tokenizer = text::load_tokenizer(file.metadata, where);
  require_tokenizer_fits(*source.tokenizer, source.config, where + ":");
  source.weights = std::make_unique<CheckpointReader>(std::move(file));
  return source;
}

ModelSource source_of_folder(const std::string& path) {
  auto folder = std::make_unique<HfFolder>(path);
  ModelSource source{.from = path, .config = folder->config().model};
  source.files = folder->small_files();
  source.dropped = folder->dropped();
  std::error_code error;
  if (std::filesystem::exists(path + "/tokenizer.json", error)) {
    source.tokenizer = std::make_shared<text::HfTokenizer>(text::HfTokenizer::open(path));
    if (source.tokenizer->size() > source.config.vocabulary)
      throw FormatError("[tokenizer] " + path + "/tokenizer.json: has " +
                        std::to_string(source.tokenizer->size()) + " tokens, the model " +
                        std::to_string(source.config.vocabulary));
  }
  source.weights = std::make_unique<FolderReader>(std::move(folder));
  return source;
}

ModelSource source_at(const std::string& path) {
  return is_gguf_file(path) ? source_of_gguf(path) : source_of_folder(path);
}

HfConfig config_in(const nn::FolderFiles& files, const std::string& where) {
  const auto text = files.find("config.json"), more = files.find("generation_config.json");
  if (text == files.end()) throw FormatError(where + ": has no config.json of the model's folder");
  HfConfig config = parse_hf_config(text->second, where + ": config.json");
  if (more != files.end()) parse_hf_generation(more->second, where + ": generation_config.json", config);
  return config;
}

HfConfig hf_config_of(const ModelSource& source, const std::string& where) {
  if (source.files.contains("config.json")) {
    HfConfig config = config_in(source.files, source.from);
    if (is_config_of(config, source.config)) return config;
    HfConfig changed = hf_config_for(source.config, where, config.family);
    changed.end_tokens = config.end_tokens, changed.start_token = config.start_token;
    changed.padding_token = config.padding_token;
    return changed;
  }
  HfConfig config = hf_config_for(source.config, where);
  if (const auto* hf = dynamic_cast<const text::HfTokenizer*>(source.tokenizer.get())) {
    if (hf->before().size() == 1) config.start_token = hf->before()[0];
    if (hf->after().size() == 1) config.end_tokens = {hf->after()[0]};
  }
  return config;
}

}  // namespace tg::io
