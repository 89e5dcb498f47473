#include "io/models/model_source.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <set>
#include <system_error>
#include <thread>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/checkpoints/model_file.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include "core/base/messages.h"
#include "core/base/piece_size.h"
#include "io/checkpoints/tensor_check.h"
#include "io/checkpoints/tensor_values.h"
#include "io/files/gguf.h"

namespace tg::io {

namespace {

class ParameterReader final : public WeightReader {
 public:
  explicit ParameterReader(const std::vector<Parameter>& parameters) {
    for (const Parameter& p : parameters) parameters_[p.name()] = p;
  }
  DType dtype(const std::string& parameter) const override { return parameters_.at(parameter).dtype(); }
  TensorView read(const std::string& parameter) const override {
    return view_of(value_ = parameters_.at(parameter).read());
  }

 private:
  std::map<std::string, Parameter> parameters_;
  mutable Array value_;
};

class CheckpointReader final : public WeightReader {
 public:
  explicit CheckpointReader(SafeTensors file) : file_(std::move(file)) {}
  DType dtype(const std::string& parameter) const override { return file_.tensors.at(parameter).dtype; }
  TensorView read(const std::string& parameter) const override { return file_.tensors.at(parameter); }

 private:
  SafeTensors file_;
};

// ---- Loading values of stored tensors into parameters, on several threads

// The number of bytes that a thread reads at a time. A large tensor is divided into parts, so that several
// threads read it.
constexpr std::size_t part_bytes = piece_size(32 << 20, 1 << 12);

// Returns the number of threads that read files. A single core cannot saturate the memory bandwidth.
unsigned readers_of(const std::vector<Parameter>& parameters, std::uint64_t bytes) {
  constexpr unsigned most = 16;
  const bool on_host =
      std::ranges::all_of(parameters, [](const Parameter& p) { return p.device().kind == Device::cpu_kind; });
  if (!on_host || bytes < part_bytes) return 1;
  return std::clamp(std::thread::hardware_concurrency(), 1u, most);
}

struct StoredPart {  // a parameter's values, starting at element `first`
  Parameter to;
  StoredTensor from;
  std::int64_t first;
};

void add_parts(const Parameter& p, const StoredTensor& all, std::vector<StoredPart>& parts) {
  if (all.is_transposed) return parts.push_back({p, all, 0});
  const std::size_t size = size_of(all.tensor.dtype);
  for (std::size_t at = 0; at < all.tensor.bytes.size(); at += part_bytes) {
    parts.push_back({p, all, static_cast<std::int64_t>(at / size)});
    std::span<const std::byte>& bytes = parts.back().from.tensor.bytes;
    bytes = bytes.subspan(at, std::min(part_bytes, bytes.size() - at));
  }
}

void load_parts(std::vector<StoredPart> parts, unsigned threads) {
  std::ranges::stable_sort(parts, [](const StoredPart& a, const StoredPart& b) {
    return a.from.tensor.bytes.size() > b.from.tensor.bytes.size();
  });
  std::vector<std::exception_ptr> failures(parts.size());
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> has_failed = false;
  const auto work = [&] {
    for (std::size_t i; !has_failed && (i = next++) < parts.size();) {
      const auto& [to, from, first] = parts[i];
      try {
        copy_tensor(*from.file, from.tensor, from.is_transposed, to, from.where, first);
      } catch (...) {
        failures[i] = std::current_exception(), has_failed = true;
      }
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (unsigned n = threads; n > 1; --n) others.emplace_back(work);
    } catch (const std::system_error&) {  // the system has no more threads: the existing ones do the work
    }
    work();
  }
  for (const std::exception_ptr& e : failures)
    if (e) std::rethrow_exception(e);
}

}  // namespace

TensorView StoredWeights::read(const std::string& parameter) const {
  auto [file, t, is_transposed, where] = *stored(parameter);
  const char* from = reinterpret_cast<const char*>(t.bytes.data());
  bytes_.resize(t.bytes.size());
  file->read(static_cast<std::size_t>(from - file->bytes().data()), bytes_);
  t.bytes = bytes_;
  if (is_transposed) {
    bytes_ = transposed(t);
    std::swap(t.shape[0], t.shape[1]);
    t.bytes = bytes_;
  }
  return t;
}

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
  return list_text(dtypes, " and ", [](DType t) { return name_of(t); });
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

ModelSource source_at(const std::string& path, bool with_tokenizer) {
  return is_gguf_file(path) ? source_of_gguf(path) : source_of_folder(path, with_tokenizer);
}

void load(const WeightReader& weights, const std::string& where, const std::vector<Parameter>& parameters) {
  std::vector<StoredPart> parts;
  std::uint64_t bytes = 0;
  for (Parameter p : parameters) {
    if (const auto stored = weights.stored(p.name())) {
      bytes += stored->tensor.bytes.size();
      add_parts(p, *stored, parts);
      continue;
    }
    const TensorView values = weights.read(p.name());
    require_finite(values.bytes, values.dtype, where + ": " + p.name());
    p.write(converted(values, p.shape(), p.dtype(), where, p.name()));
  }
  load_parts(std::move(parts), readers_of(parameters, bytes));
}

void load(const ModelSource& source, const std::vector<Parameter>& parameters) {
  load(*source.weights, "[from_pretrained] " + source.from, parameters);
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
