#include "io/models/gguf_writer.h"

#include <algorithm>
#include <cstring>
#include <set>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include "core/base/piece_size.h"
#include "io/checkpoints/tensor_values.h"
#include "io/files/gguf_format.h"
#include "io/files/json_object.h"
#include "io/files/staged_folder.h"
#include "io/models/gguf_metadata.h"

namespace tg::io {

namespace {

constexpr const char* gguf_saver = "save_gguf";

std::string gguf_saving(const std::string& what) {
  return "[" + std::string(gguf_saver) + "] " + what;
}

struct FileType {
  const char* dtype;
  GgufType type;
  std::uint32_t number;  // value of general.file_type
};
constexpr FileType file_types[] = {{"f32", GgufType::f32, 0},
                                   {"f16", GgufType::f16, 1},
                                   {"q8_0", GgufType::q8_0, 7},
                                   {"bf16", GgufType::bf16, 32}};

// Returns the type with this name. Without a name, returns the type of the weights, or f32 if the weights
// have several types.
const FileType& file_type_of(std::string dtype, const std::vector<DType>& weights) {
  if (dtype.empty())
    dtype = weights.size() == 1 && weights[0] != f64 ? std::string(name_of(weights[0])) : "f32";
  for (const FileType& t : file_types)
    if (dtype == t.dtype) return t;
  throw Error(gguf_saving("expected a dtype of f32, f16, bf16 or q8_0, got " + dtype));
}

std::string chat_template_of(const nn::FolderFiles& files) {
  if (const auto text = files.find("chat_template.jinja"); text != files.end()) return text->second;
  const auto config = files.find("tokenizer_config.json");
  if (config == files.end()) return "";
  const JsonObject json(config->second, "tokenizer_config.json");
  try {
    return json.string("chat_template", "");
  } catch (const FormatError&) {  // a list of templates without a default
    return "";
  }
}

// Converts f32 values to the bytes of a type.
std::string in_type(GgufType type, std::span<const float> values, const std::string& where) {
  std::string bytes(values.size() / gguf_block(type) * gguf_block_bytes(type), '\0');
  auto* to = reinterpret_cast<std::byte*>(bytes.data());
  if (type == GgufType::q8_0) {
    if (!to_q8_0(values, {to, bytes.size()}))
      throw FormatError(where + " has a number that is too large for q8_0");
    return bytes;
  }
  if (type == GgufType::f32) std::memcpy(to, values.data(), bytes.size());
  return bytes;
}

}  // namespace

GgufWriter::GgufWriter(ModelSource& source, const nn::GgufOptions& options)
    : source_(source), options_(options) {
  const std::string where = gguf_saving(source.from);
  const HfConfig config = hf_config_of(source, where);
  const FileType& file_type = file_type_of(options.dtype, source.dtypes());
  type_ = file_type.type;
  architecture_ = gguf_architecture(config.family);
  add_gguf_config(config, where, start_, notes_);
  start_.add("general.file_type", file_type.number);
  if (type_ == GgufType::q8_0) start_.add("general.quantization_version", std::uint32_t{2});
  std::shared_ptr<const text::HfTokenizer> tokenizer;
  if (source.tokenizer && source.tokenizer->kind() != "numbers")
    tokenizer =
        std::make_shared<text::HfTokenizer>(text::tokenizer_json(*source.tokenizer), where + ": tokenizer");
  if (tokenizer) require_tokenizer_fits(*tokenizer, source.config, where + ":");
  has_tokenizer_ = tokenizer != nullptr;
  add_gguf_tokenizer(tokenizer.get(), config, chat_template_of(source.files), where, start_, notes_);
  plan_tensors(config);
}

// Vectors, norms and learned positions are always f32. If rows do not consist of complete blocks, f16 is
// used.
GgufType GgufWriter::type_of(const GgufRowOrder& place) {
  if (place.shape.size() == 1 || place.tensor.ends_with("_norm.weight") ||
      !place.tensor.ends_with(".weight") || place.tensor == "position_embd.weight")
    return GgufType::f32;
  if (place.shape[place.shape.size() - 1] % static_cast<std::int64_t>(gguf_block(type_)) == 0) return type_;
  return GgufType::f16;
}

void GgufWriter::plan_tensors(const HfConfig& config) {
  std::set<std::string> present;
  source_.config.each_parameter([&](const std::string& name, const Shape&) { present.insert(name); });
  std::map<std::string, std::size_t> found;
  std::string others;
  config.model.each_parameter([&](const std::string& name, const Shape& shape) {
    for (const GgufRowOrder& place : gguf_rows(config.family, config.model, name, shape)) {
      const auto [at, is_new] = found.try_emplace(place.tensor, tensors_.size());
      if (is_new) {
        tensors_.push_back({place.tensor, type_of(place), {place.shape.begin(), place.shape.end()}});
        if (type_ == GgufType::q8_0 && tensors_.back().type == GgufType::f16) others = place.tensor;
      }
      tensors_[at->second].parts.push_back({name, shape, place, present.contains(name)});
    }
  });
  if (!others.empty())
    notes_.push_back("rows that are not a multiple of 32 elements are in f16, as in " + others);
  for (const GgufFactors& f : gguf_factors(config)) {
    tensors_.push_back({f.tensor, GgufType::f32, {static_cast<std::int64_t>(f.values.size())}});
    tensors_.back().factors = f.values;
  }
  for (const Tensor& t : tensors_) {
    start_.add_tensor(t.name, t.type, t.shape);
    bytes_ += gguf_bytes(t.type, t.shape);
  }
}

void GgufWriter::write_part(const Tensor& tensor, const Part& part,
                            const std::function<void(std::string_view)>& write) {
  // The number of elements per conversion, a number of complete blocks.
  constexpr std::size_t piece = piece_size(1 << 20, 1 << 8);
  if (!part.is_there) {
    write(std::string(gguf_bytes(tensor.type, {part.shape.begin(), part.shape.end()}), '\0'));
    return;
  }
  TensorView values = source_.weights->read(part.parameter);
  const std::string where = gguf_saving(source_.from);
  require_finite(values.bytes, values.dtype, where + ": " + part.parameter);
  std::vector<std::byte> moved;
  if (part.place.change != GgufRowOrder::Change::none &&
      part.place.change != GgufRowOrder::Change::plus_one) {
    moved = to_place(part.place, values);
    values.bytes = moved;
  }
  const std::size_t step = piece * size_of(values.dtype);
  for (std::size_t i = 0; i < values.bytes.size(); i += step) {
    const auto bytes = values.bytes.subspan(i, std::min(step, values.bytes.size() - i));
    const auto n = static_cast<std::int64_t>(bytes.size() / size_of(values.dtype));
    const auto first = static_cast<std::int64_t>(i / size_of(values.dtype));
    const TensorView view{values.dtype, {n}, bytes};
    if (tensor.type == GgufType::f16 || tensor.type == GgufType::bf16) {
      const Array rounded =
          converted(view, {n}, tensor.type == GgufType::f16 ? f16 : bf16, where, part.parameter, first);
      write({reinterpret_cast<const char*>(rounded.raw()), rounded.bytes()});
      continue;
    }
    const Array exact = converted(view, {n}, f32, where, part.parameter, first);
    std::vector<float> numbers(static_cast<std::size_t>(n));
    std::memcpy(numbers.data(), exact.raw(), exact.bytes());
    if (part.place.change == GgufRowOrder::Change::plus_one)
      for (float& x : numbers) x += 1;
    write(in_type(tensor.type, numbers, where + ": " + part.parameter));
  }
}

void GgufWriter::write(const std::string& path) {
  StagedFolder staged(path, gguf_saver);
  const std::string name = "model.gguf";
  OutputFile file(staged.path(name), gguf_saver);
  file.write(start_.bytes());
  std::uint64_t written = 0;
  for (const Tensor& tensor : tensors_) {
    std::uint64_t of_tensor = 0;
    const auto write = [&](std::string_view bytes) {
      file.write(bytes);
      of_tensor += bytes.size(), written += bytes.size();
      if (options_.written) options_.written(written, bytes_);
    };
    if (!tensor.factors.empty()) write(in_type(tensor.type, tensor.factors, path));
    for (const Part& part : tensor.parts) write_part(tensor, part, write);
    file.write(gguf_padding(of_tensor));
  }
  file.sync();
  file.close();
  staged.publish_file(name);
}

}  // namespace tg::io
