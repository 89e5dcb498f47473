#include "io/models/hf_writer.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/json.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include "core/base/piece_size.h"
#include "io/checkpoints/tensor_values.h"
#include "io/files/json_object.h"
#include "io/files/safetensors_start.h"
#include "io/files/staged_folder.h"
#include "io/models/tensor_names.h"

namespace tg::io {

namespace {

constexpr const char* saver = "save_pretrained";

std::string saving(const std::string& what) {
  return "[" + std::string(saver) + "] " + what;
}

std::string_view text_of_bytes(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

DType wider(DType a, DType b) {
  if (size_of(a) != size_of(b)) return size_of(a) > size_of(b) ? a : b;
  return a == b ? a : f32;  // for bf16 with f16
}

}  // namespace

HfWriter::HfWriter(ModelSource& source, const nn::SaveOptions& options)
    : source_(source), options_(options), config_(hf_config_of(source, saving(source.from))) {
  if (options.dtype && !is_float(*options.dtype))
    throw DTypeError(saving("expected a floating dtype, got ") + std::string(name_of(*options.dtype)));
  if (options.shard_bytes < 1) throw Error(saving("expected shards of a byte or more, got 0"));
  if (source.tokenizer && source.tokenizer->kind() != "numbers") {
    tokenizer_ = text::tokenizer_json(*source.tokenizer);
    require_tokenizer_fits(*source.tokenizer, source.config, "[" + std::string(saver) + "]");
  }
  plan_tensors(options.dtype);
  plan_shards(options.shard_bytes);
}

void HfWriter::plan_tensors(std::optional<DType> dtype) {
  std::set<std::string> present;
  source_.config.each_parameter([&](const std::string& name, const Shape&) { present.insert(name); });
  const DType usual = source_.weights->dtype(*present.begin());
  config_.model.each_parameter([&](const std::string& name, const Shape& shape) {
    const HfTensor theirs = hf_tensor(config_.family, config_.model, name, shape);
    const bool is_there = present.contains(name);
    const DType type = dtype.value_or(is_there ? source_.weights->dtype(name) : usual);
    const auto [at, is_new] = tensors_.try_emplace(theirs.name);
    Tensor& t = at->second;
    if (is_new) order_.push_back(theirs.name);
    t.dtype = is_new ? type : wider(t.dtype, type);
    t.shape = theirs.shape, t.is_transposed = theirs.is_transposed;
    t.parts.push_back({name, shape, theirs.first_row, is_there});
    present.erase(name);
  });
  if (!present.empty()) throw Error(saving(config_.family + " has no parameter ") + *present.begin());
  for (auto& [name, t] : tensors_) {
    std::ranges::sort(t.parts, [](const Part& a, const Part& b) { return a.first_row < b.first_row; });
    bytes_ += t.bytes();
  }
}

void HfWriter::plan_shards(std::uint64_t most) {
  std::uint64_t bytes = 0;
  for (const std::string& name : order_) {
    const std::uint64_t more = tensors_.at(name).bytes();
    if (shards_.empty() || (bytes + more > most && bytes > 0)) shards_.emplace_back(), bytes = 0;
    shards_.back().push_back(name);
    bytes += more;
  }
}

std::string HfWriter::shard_name(std::size_t shard) const {
  if (shards_.size() == 1) return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", shard + 1, shards_.size());
  return name;
}

std::vector<std::string> HfWriter::files() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < shards_.size(); ++i) names.push_back(shard_name(i));
  return names;
}

std::vector<DType> HfWriter::dtypes() const {
  std::set<DType> all;
  for (const auto& [name, t] : tensors_) all.insert(t.dtype);
  return {all.begin(), all.end()};
}

std::string HfWriter::config_text() const {
  DType widest = tensors_.begin()->second.dtype;
  for (const DType t : dtypes()) widest = wider(widest, t);
  const auto text = source_.files.find("config.json");
  const std::string where = source_.from + ": config.json";
  if (text == source_.files.end() || !is_config_of(parse_hf_config(text->second, where), source_.config))
    return hf_config_json(config_, widest);
  return dtypes().size() > 1 ? text->second : hf_config_with_dtype(text->second, where, widest);
}

std::string HfWriter::tokenizer_config_text() const {
  std::map<std::string, std::string> members{{"tokenizer_class", json_string("PreTrainedTokenizerFast")},
                                             {"model_max_length", std::to_string(config_.model.context)},
                                             {"clean_up_tokenization_spaces", "false"},
                                             // Excludes token types. Otherwise transformers 4 would create
                                             // them and pass them to models without token types.
                                             {"model_input_names", "[\"input_ids\", \"attention_mask\"]"}};
  if (const auto* hf = dynamic_cast<const text::HfTokenizer*>(source_.tokenizer.get())) {
    const auto name = [&](const char* key, const std::optional<std::int64_t>& id) {
      if (id && *id >= 0 && *id < hf->size())
        members[key] = json_string(hf->token_text(static_cast<std::int32_t>(*id)));
    };
    name("bos_token", config_.start_token), name("pad_token", config_.padding_token);
    if (!config_.end_tokens.empty()) name("eos_token", config_.end_tokens[0]);
  }
  return json_object_text(members);
}

void HfWriter::write_tensor(const Tensor& tensor, const std::function<void(std::string_view)>& write) {
  constexpr std::size_t piece = piece_size(1 << 20, 1 << 6);  // elements per conversion
  for (const Part& part : tensor.parts) {
    if (!part.is_there) {
      write(std::string(static_cast<std::size_t>(numel(part.shape)) * size_of(tensor.dtype), '\0'));
      continue;
    }
    TensorView values = source_.weights->read(part.parameter);
    const std::string where = saving(source_.from);
    require_finite(values.bytes, values.dtype, where + ": " + part.parameter);
    std::vector<std::byte> transposed_bytes;
    if (tensor.is_transposed) {
      transposed_bytes = transposed(values);
      values.bytes = transposed_bytes;
    }
    if (values.dtype == tensor.dtype) {
      write(text_of_bytes(values.bytes));
      continue;
    }
    const std::size_t step = piece * size_of(values.dtype);
    for (std::size_t i = 0; i < values.bytes.size(); i += step) {
      const auto bytes = values.bytes.subspan(i, std::min(step, values.bytes.size() - i));
      const auto n = static_cast<std::int64_t>(bytes.size() / size_of(values.dtype));
      const Array rounded = converted({values.dtype, {n}, bytes}, {n}, tensor.dtype, where, part.parameter,
                                      static_cast<std::int64_t>(i / size_of(values.dtype)));
      write(text_of_bytes({rounded.raw(), rounded.bytes()}));
    }
  }
}

void HfWriter::write_shard(const std::string& path, const std::vector<std::string>& names) {
  std::map<std::string, TensorKind> kinds;
  for (const std::string& name : names) {
    const Tensor& t = tensors_.at(name);
    kinds[name] = {t.dtype, {t.shape.begin(), t.shape.end()}};
  }
  const SafeTensorsStart start = safetensors_start(kinds, {{"format", "pt"}}, saving(path));
  OutputFile file(path, saver);
  file.write(start.bytes);
  for (const std::string& name : start.order)
    write_tensor(tensors_.at(name), [&](std::string_view bytes) {
      file.write(bytes);
      written_ += bytes.size();
      if (options_.written) options_.written(written_, bytes_);
    });
  file.sync();
  file.close();
}

std::string HfWriter::index_text() const {
  std::map<std::string, std::string> map;
  for (std::size_t i = 0; i < shards_.size(); ++i)
    for (const std::string& name : shards_[i]) map[name] = json_string(shard_name(i));
  return json_object_text({{"metadata", json_object_text({{"total_size", std::to_string(bytes_)}})},
                           {"weight_map", json_object_text(map)}});
}

void HfWriter::write(const std::string& folder) {
  StagedFolder staged(folder, saver);
  const auto add = [&](const std::string& name, const std::string& text) {
    const std::string_view piece = text;
    write_new_file(staged.path(name), {&piece, 1}, saver);
  };
  add("config.json", config_text());
  const bool has_ids = config_.start_token || config_.padding_token || !config_.end_tokens.empty();
  if (const auto text = source_.files.find("generation_config.json"); text != source_.files.end())
    add("generation_config.json", text->second);
  else if (has_ids)
    add("generation_config.json", hf_generation_json(config_));
  if (has_tokenizer()) {
    add("tokenizer.json", tokenizer_);
    const bool is_theirs = source_.tokenizer->kind() == "hf";
    bool has_config = false;
    for (const auto& [name, text] : source_.files) {
      if (!is_theirs || name == "config.json" || name == "generation_config.json") continue;
      add(name, text);
      has_config |= name == "tokenizer_config.json";
    }
    if (!has_config) add("tokenizer_config.json", tokenizer_config_text());
  }
  written_ = 0;
  for (std::size_t i = 0; i < shards_.size(); ++i) write_shard(staged.path(shard_name(i)), shards_[i]);
  if (shards_.size() > 1) add("model.safetensors.index.json", index_text());
  staged.publish();
}

}  // namespace tg::io
