#include "io/interop/gguf_writer.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include "io/checkpoints/convert.h"
#include "io/checkpoints/finite.h"
#include "io/files/staged_file.h"
#include "io/interop/gguf_config.h"
#include "io/interop/gguf_names.h"
#include "io/interop/gguf_tokenizer.h"
#include "io/interop/q8_0.h"

namespace tg::io {

namespace {

constexpr const char* gguf_saver = "save_gguf";

std::string gguf_saving(const std::string& what) {
  return "[" + std::string(gguf_saver) + "] " + what;
}

std::string_view text_of(const void* bytes, std::size_t count) {
  return {static_cast<const char*>(bytes), count};
}

GgufEncoding encoding_of(DType dtype) {
  return dtype == bf16 ? GgufEncoding::bf16 : dtype == f16 ? GgufEncoding::f16 : GgufEncoding::f32;
}

DType dtype_of(GgufEncoding encoding) {
  return encoding == GgufEncoding::bf16 ? bf16 : encoding == GgufEncoding::f16 ? f16 : f32;
}

// general.file_type: what most tensors are in.
std::int64_t file_type(GgufEncoding encoding) {
  return encoding == GgufEncoding::f32    ? 0
         : encoding == GgufEncoding::f16  ? 1
         : encoding == GgufEncoding::q8_0 ? 7
                                          : 32;
}

// Values of a tensor in the bytes of the file.
std::string encoded(const TensorView& values, GgufEncoding encoding, bool is_plus_one,
                    const std::string& where, const std::string& name) {
  const auto n = static_cast<std::int64_t>(values.bytes.size() / size_of(values.dtype));
  if (encoding != GgufEncoding::q8_0 && values.dtype == dtype_of(encoding) && !is_plus_one)
    return std::string(text_of(values.bytes.data(), values.bytes.size()));
  const TensorView flat{values.dtype, {n}, values.bytes};
  if (encoding != GgufEncoding::q8_0 && !is_plus_one) {
    const Array a = converted(flat, {n}, dtype_of(encoding), where, name);
    return std::string(text_of(a.raw(), a.bytes()));
  }
  Array a = converted(flat, {n}, f32, where, name);
  const std::span<float> x(reinterpret_cast<float*>(a.raw()), static_cast<std::size_t>(n));
  if (is_plus_one)
    for (float& e : x) e += 1;
  if (encoding != GgufEncoding::q8_0)
    return encoded({f32, {n}, {a.raw(), a.bytes()}}, encoding, false, where, name);
  std::string bytes;
  for (std::size_t i = 0; i < x.size(); i += q8_0::values) {
    const q8_0::Block b = q8_0::block_of(std::span<const float, q8_0::values>(x.data() + i, q8_0::values));
    bytes += text_of(&b, sizeof b);
  }
  return bytes;
}

}  // namespace

GgufWriter::GgufWriter(ModelSource& source, const GgufOptions& options)
    : source_(source), options_(options), config_(hf_config_of(source, gguf_saving(source.from))) {
  const std::string where = gguf_saving(source.from);
  start_.string("general.architecture", gguf_architecture(config_.family));
  start_.string("general.type", "model");
  const std::string name = std::filesystem::path(source.from).filename().string();
  start_.string("general.name", name.empty() ? source.from : name);
  write_gguf_config(config_, where, start_);
  plan_tensors(options.encoding);
  start_.u32("general.file_type", file_type(encoding_));
  start_.u32("general.quantization_version", 2);
  has_tokenizer_ = source.tokenizer && source.tokenizer->kind() != "numbers";
  if (has_tokenizer_)
    write_gguf_tokenizer(*source.tokenizer, config_, source.files, where, start_);
  else
    start_.string("tokenizer.ggml.model", "none");
}

std::string GgufWriter::architecture() const {
  return gguf_architecture(config_.family);
}

std::int64_t GgufWriter::context() const {
  return gguf_context(config_);
}

GgufEncoding GgufWriter::encoding_for(const std::string& name, const Shape& shape) {
  if (shape.size() == 1 || name.ends_with("_norm.weight") || name == "position_embd.weight")
    return GgufEncoding::f32;
  if (encoding_ != GgufEncoding::q8_0 || row_bytes(encoding_, static_cast<std::uint64_t>(shape.back())))
    return encoding_;
  ++not_in_blocks_;
  return GgufEncoding::f16;
}

void GgufWriter::plan_tensors(std::optional<GgufEncoding> encoding) {
  std::set<std::string> present;
  source_.config.each_parameter([&](const std::string& name, const Shape&) { present.insert(name); });
  if (encoding) {
    encoding_ = *encoding;
  } else {  // that of the widest weight
    const std::vector<DType> dtypes = source_.dtypes();
    encoding_ = encoding_of(dtypes[0]);
    for (const DType t : dtypes)
      if (encoding_of(t) != encoding_) encoding_ = GgufEncoding::f32;
  }
  if (std::vector<float> divisors = gguf_rope_divisors(config_); !divisors.empty()) {
    const auto n = static_cast<std::int64_t>(divisors.size());
    tensors_.push_back({"rope_freqs.weight", {n}, GgufEncoding::f32, 0, false, {}, std::move(divisors)});
  }
  std::map<std::string, std::size_t> places;
  config_.model.each_parameter([&](const std::string& parameter, const Shape& shape) {
    const HfTensor theirs = hf_tensor(config_.family, config_.model, parameter, shape);
    const GgufTensorName t = gguf_tensor_name(config_, theirs.name);
    if (t.name.empty())
      throw FormatError(gguf_saving(source_.from) + ": llama.cpp's " + architecture() + " has no tensor for " +
                        parameter);
    const auto [place, is_new] = places.emplace(t.name, tensors_.size());
    const Shape& all = theirs.is_transposed ? shape : theirs.shape;
    if (is_new) tensors_.push_back({t.name, all, encoding_for(t.name, all), t.heads, t.is_plus_one, {}, {}});
    tensors_[place->second].parts.push_back({parameter, shape, present.contains(parameter)});
  });
  for (const Tensor& t : tensors_) start_.tensor(t.name, t.encoding, {t.shape.begin(), t.shape.end()});
}

void GgufWriter::write_tensor(const Tensor& tensor, const std::function<void(std::string_view)>& write) {
  if (!tensor.values.empty())
    return write(text_of(tensor.values.data(), tensor.values.size() * sizeof(float)));
  const std::string where = gguf_saving(source_.from);
  const auto columns = static_cast<std::size_t>(tensor.shape.back());
  for (const Part& part : tensor.parts) {
    if (!part.is_there) {
      const auto bytes =
          *row_bytes(tensor.encoding, columns) * static_cast<std::uint64_t>(numel(part.shape)) / columns;
      write(std::string(bytes, '\0'));
      continue;
    }
    const TensorView values = source_.weights->read(part.parameter);
    if (const auto bad = first_not_finite(values.bytes, values.dtype))
      throw FormatError(where + ": " + part.parameter + " has a number that is not finite at element " +
                        std::to_string(*bad));
    // Rows of a vector are its numbers.
    const std::size_t row = tensor.heads == 0 ? columns * size_of(values.dtype)
                                              : values.bytes.size() / static_cast<std::size_t>(part.shape[0]),
                      rows = values.bytes.size() / row;
    std::vector<std::byte> turned;
    std::span<const std::byte> bytes = values.bytes;
    if (tensor.heads > 0) {
      turned.resize(bytes.size());
      const auto width = static_cast<std::int64_t>(rows) / tensor.heads;
      for (std::size_t r = 0; r < rows; ++r)
        std::memcpy(turned.data() +
                        static_cast<std::size_t>(interleaved_row(static_cast<std::int64_t>(r), width)) * row,
                    bytes.data() + r * row, row);
      bytes = turned;
    }
    const std::size_t piece = std::max<std::size_t>(1, (std::size_t{1} << 22) / row) * row;
    for (std::size_t i = 0; i < bytes.size(); i += piece)
      write(encoded({values.dtype, {}, bytes.subspan(i, std::min(piece, bytes.size() - i))}, tensor.encoding,
                    tensor.is_plus_one, where, part.parameter));
  }
}

void GgufWriter::write(const std::string& path) {
  StagedFile staged(path, gguf_saver);
  OutputFile file(staged.path(), gguf_saver);
  file.write(start_.bytes());
  std::uint64_t written = 0;
  for (const Tensor& t : tensors_) {
    std::uint64_t size = 0;
    const auto add = [&](std::string_view bytes) {
      file.write(bytes);
      size += bytes.size();
    };
    write_tensor(t, add);
    add(std::string(gguf_padding(size), '\0'));
    written += size;
    if (options_.written) options_.written(written, bytes());
  }
  file.sync();
  file.close();
  staged.publish();
}

}  // namespace tg::io
