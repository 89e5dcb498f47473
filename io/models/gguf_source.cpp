// Reads a model from a GGUF file.
#include <algorithm>
#include <cstring>
#include <set>

#include <tilegrad/core/base/error.h>
#include "core/base/messages.h"
#include "io/checkpoints/tensor_values.h"
#include "io/files/gguf_format.h"
#include "io/models/gguf_metadata.h"
#include "io/models/model_source.h"
#include "io/models/tensor_names.h"

namespace tg::io {

namespace {

DType dtype_of(GgufType type) {
  return type == GgufType::f16 ? f16 : type == GgufType::bf16 ? bf16 : f32;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

class GgufReader final : public WeightReader {
 public:
  struct Parameter {
    Shape shape;
    std::vector<GgufRowOrder> places;
    DType dtype;
  };
  GgufReader(std::shared_ptr<const MappedGguf> file, std::map<std::string, Parameter> parameters)
      : file_(std::move(file)), parameters_(std::move(parameters)) {}

  DType dtype(const std::string& parameter) const override { return parameters_.at(parameter).dtype; }

  TensorView read(const std::string& name) const override {
    const Parameter& p = parameters_.at(name);
    values_.resize(static_cast<std::size_t>(numel(p.shape)) * size_of(p.dtype));
    for (const GgufRowOrder& place : p.places) read_place(p, place);
    return {p.dtype, {p.shape.begin(), p.shape.end()}, values_};
  }

 private:
  void read_place(const Parameter& p, const GgufRowOrder& place) const {
    const GgufTensor tensor = *file_->gguf.tensor(place.tensor);
    const bool is_latent = place.keys > 0;
    const std::size_t row = tensor.bytes.size() / static_cast<std::size_t>(tensor.shape[0]);
    const std::string_view rows = is_latent
                                      ? tensor.bytes
                                      : tensor.bytes.substr(static_cast<std::size_t>(place.first_row) * row,
                                                            static_cast<std::size_t>(p.shape[0]) * row);
    TensorView view{p.dtype, {}, bytes_of(rows)};
    if (tensor.type == GgufType::q8_0) {
      numbers_.resize(rows.size() / q8_0_bytes * q8_0_numbers);
      from_q8_0(bytes_of(rows), numbers_);
      view.bytes = std::as_bytes(std::span(numbers_));
    } else if (dtype_of(tensor.type) != p.dtype) {  // the parameter is stored in two tensors
      throw FormatError(file_->gguf.where() + ": " + place.tensor + " is " +
                        std::string(name_of(tensor.type)) + ", expected the type of its other half");
    }
    from_place(place, view, values_, p.shape[0]);
    const MappedFile& mapped = file_->file;
    mapped.check();
    mapped.release(static_cast<std::size_t>(rows.data() - mapped.bytes().data()), rows.size());
    if (place.change != GgufRowOrder::Change::plus_one) return;
    for (std::size_t i = 0; i < values_.size(); i += sizeof(float)) {
      float x;
      std::memcpy(&x, values_.data() + i, sizeof x);
      x -= 1;
      std::memcpy(values_.data() + i, &x, sizeof x);
    }
  }

  std::shared_ptr<const MappedGguf> file_;
  std::map<std::string, Parameter> parameters_;
  mutable std::vector<std::byte> values_;
  mutable std::vector<float> numbers_;
};

// Finds the tensors of every parameter and checks their shapes. Throws FormatError if the file has any other
// tensor, unless `others` contains it.
std::map<std::string, GgufReader::Parameter> match(const Gguf& file, const HfConfig& config,
                                                   const std::set<std::string>& others) {
  std::map<std::string, GgufReader::Parameter> parameters;
  std::set<std::string> used = others;
  config.model.each_parameter([&](const std::string& name, const Shape& shape) {
    GgufReader::Parameter p{shape, gguf_rows(config.family, config.model, name, shape), f32};
    for (const GgufRowOrder& place : p.places) {
      const auto tensor = file.tensor(place.tensor);
      if (!tensor) throw FormatError(file.where() + ": has no tensor " + place.tensor);
      if (!std::equal(tensor->shape.begin(), tensor->shape.end(), place.shape.begin(), place.shape.end()))
        throw FormatError(file.where() + ": " + place.tensor + " is " + shape_text(tensor->shape) +
                          ", expected " + place.shape.text() + " by the file's keys");
      if (place.change == GgufRowOrder::Change::plus_one && tensor->type != GgufType::f32)
        throw FormatError(file.where() + ": " + place.tensor + " is " + std::string(name_of(tensor->type)) +
                          ", expected F32");
      p.dtype = dtype_of(tensor->type);
      used.insert(place.tensor);
    }
    parameters.emplace(name, std::move(p));
  });
  for (std::size_t i = 0; i < file.tensor_count(); ++i)
    if (const std::string name(file.tensor(i).name); !used.contains(name))
      throw FormatError(file.where() + ": has a tensor " + name + " that a model of " +
                        file.string("general.architecture") + " does not have");
  return parameters;
}

}  // namespace

ModelSource source_of_gguf(const std::string& path) {
  auto file = std::make_shared<const MappedGguf>(path, "from_pretrained");
  const Gguf& gguf = file->gguf;
  std::set<std::string> others;
  const HfConfig config = read_gguf_config(gguf, &others);
  ModelSource source{.from = path, .config = config.model};
  auto parameters = with_format_errors(gguf.where(), [&] { return match(gguf, config, others); });
  source.weights = std::make_unique<GgufReader>(file, std::move(parameters));
  source.tokenizer = read_gguf_tokenizer(gguf);
  if (source.tokenizer && source.tokenizer->size() > config.model.vocabulary)
    gguf.refuse("tokenizer.ggml.tokens",
                std::to_string(config.model.vocabulary) + " tokens, as the model has");
  check_gguf_keys(gguf);
  DType widest = bf16;
  for (const DType t : source.dtypes()) widest = t == bf16 && widest == bf16 ? bf16 : f32;
  source.files["config.json"] = hf_config_json(config, widest);
  if (gguf.has("tokenizer.chat_template"))
    source.files["chat_template.jinja"] = gguf.string("tokenizer.chat_template");
  file->file.check();
  return source;
}

}  // namespace tg::io
