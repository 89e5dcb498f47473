// The model of a checkpoint that train wrote, with its weights and its tokenizer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <tilegrad/io/checkpoints/checkpoint.h>
#include <tilegrad/io/checkpoints/model_file.h>
#include <tilegrad/io/interop/pretrained.h>
#include <tilegrad/io/text/tokenizer.h>
#include <tilegrad/nn/layers/autocast.h>
#include <tilegrad/nn/models/model.h>
#include "io/interop/adapter_source.h"
#include "io/interop/model_source.h"
#include "tools/cache_memory.h"
#include "tools/train_report.h"

namespace tg {

inline constexpr const char* model_file = "model.safetensors";

// A model of which at most `context` tokens in a row are used. It is made for that many, as far as its
// parameters allow (a table of positions does not), for rotary positions can depend on it. The parameters'
// settings are those of the whole model, whose weights they are.
inline nn::Model model_with_context(nn::Params& params, const nn::ModelConfig& config, std::int64_t context) {
  if (context == config.context) return nn::Model(params, config);
  nn::ModelConfig shorter = config;
  shorter.context = context;
  const bool fits = shorter.parameters() == config.parameters();
  nn::ModelParts parts = config.architecture.make(params, fits ? shorter : config);
  parts.context = context;
  nn::Params whole = nn::Params::unset(bf16);
  config.architecture.make(whole, config);
  for (std::size_t i = 0; i < whole.all().size(); ++i)
    for (const auto& [name, value] : whole.all()[i].settings())
      Parameter(params.all()[i]).add_setting(name, value);
  return nn::Model(params, std::move(parts));
}

// What a checkpoint says of its model: the configuration, and the metadata it was read from. One of train
// --lora has an adapter instead of the model's weights.
struct CheckpointModel {
  io::Checkpoint checkpoint;
  std::string where;  // the file, for messages
  io::Metadata metadata;
  nn::ModelConfig config;
  std::optional<io::SavedAdapter> adapter;

  // `path`: a run's directory or a checkpoint's. Throws Error and FormatError as Checkpoint does.
  explicit CheckpointModel(const std::string& path)
      : checkpoint(path), where(checkpoint.directory() + "/" + model_file) {
    io::SafeTensors file = checkpoint.load(model_file);
    metadata = file.metadata;
    if (io::holds_adapter(metadata)) {
      adapter.emplace(std::move(file), where);
      config = adapter->model;
    } else {
      config = io::model_config(file, where);
    }
  }

  // Throws FormatError when there is none, or it is not the model's. The vocabulary of a model from a folder
  // can be larger than its tokenizer's: it is rounded up.
  std::unique_ptr<text::Tokenizer> tokenizer() const {
    auto made = text::load_tokenizer(metadata, where);
    if (made->size() > config.vocabulary || (files().empty() && made->size() < config.vocabulary))
      throw FormatError(where + ": the tokenizer has " + std::to_string(made->size()) +
                        " tokens, the model " + std::to_string(config.vocabulary));
    return made;
  }

  // Of the folder that train --from began with; none if it began with a new model.
  nn::FolderFiles files() const { return nn::folder_files(metadata); }
  // Any of them ends a text.
  std::vector<std::int64_t> end_tokens() const {
    const nn::FolderFiles of = files();
    return of.empty() ? std::vector<std::int64_t>{} : io::config_in(of, where).end_tokens;
  }

  // Gives a model's parameters their values, rounded to their dtype. Throws FormatError also for a NaN or an
  // infinity among them.
  void restore(const nn::Params& params) const {
    if (adapter)
      throw Error(where +
                  ": holds an adapter and no weights: export --model … --merge --to hf adds it to them");
    checkpoint.restore(std::vector<io::CheckpointFile>{{model_file, params.all()}}, io::Dtypes::convert);
    io::check_finite(params.all(), where);
  }
};

// Throws OutOfMemory if a key-value cache for the model's whole context does not fit on its device. Nothing
// else bounds a context without a table of positions.
inline void check_cache_memory(const nn::Model& model, std::int64_t batch, nn::Precision precision,
                               std::optional<DType> dtype = {}) {
  const std::int64_t token = bytes_of(cache_of_token(model, precision, dtype));
  check_memory(nn::LanguageModel(model).device(),
               static_cast<double>(token) * static_cast<double>(batch) * static_cast<double>(model.context()),
               "a key-value cache for " + grouped(batch) + " × " + grouped(model.context()) + " tokens");
}

}  // namespace tg
