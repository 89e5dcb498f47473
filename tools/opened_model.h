// Opens the model that a tool reads: a checkpoint of train, a Hugging Face folder, or a GGUF file.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tilegrad/io/checkpoints/checkpoint.h>
#include <tilegrad/io/checkpoints/model_file.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/models/peft.h>
#include <tilegrad/io/models/pretrained.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include "io/files/gguf.h"
#include "io/models/adapter_source.h"
#include "io/models/model_source.h"
#include "tools/train_report.h"

namespace tg {

inline constexpr const char* model_file = "model.safetensors";

// Returns a model for sequences of at most `context` tokens. The parameters have the shapes for the full
// context, because the stored weights are loaded into them. The layers are built for `context`, because
// rotary positions can depend on it. If the model has a table of positions, the layers are built for its
// length.
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

// The properties of a model that are known before its weights are read.
struct OpenedModel {
  std::string title;         // for messages: config.text(), or the family and its size
  nn::ModelConfig config;    // with the full context
  std::int64_t context = 0;  // maximum sequence length in tokens
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::vector<std::int64_t> end_tokens = {};  // any of them ends a sequence
  std::function<nn::Model(DType weights, Device device, std::int64_t context)> make;

  nn::Model load(DType weights, Device device) const { return make(weights, device, context); }
  // Reduces the context. Throws ShapeError if `to` is longer than the model's context.
  void limit_context(std::int64_t to) {
    if (to > context)
      throw ShapeError("[model] expected a context up to " + std::to_string(context) + ", the model's, got " +
                       std::to_string(to));
    context = to;
  }
  bool is_end(std::int32_t token) const {
    return std::find(end_tokens.begin(), end_tokens.end(), token) != end_tokens.end();
  }
};

// Adds the adapter of a PEFT folder, or of a run of train --lora, to a model.
inline nn::Model with_adapter(nn::Pretrained model, const std::string& adapter) {
  std::error_code error;
  if (std::filesystem::exists(adapter + "/adapter_config.json", error))
    nn::load_adapter(model, adapter);
  else
    io::add_adapter(model, io::saved_adapter(adapter));
  return model.model;
}

// Opens a checkpoint that train wrote. A checkpoint of train --lora contains an adapter instead of the
// model's weights. Throws the errors of Checkpoint, and FormatError if the tokenizer does not match the
// model. If a weight is NaN or infinite, loading the weights later throws FormatError.
inline OpenedModel open_checkpoint(const std::string& path) {
  const auto checkpoint = std::make_shared<const io::Checkpoint>(path);
  const std::string where = checkpoint->directory() + "/" + model_file;
  io::SafeTensors file = checkpoint->load(model_file);
  const io::Metadata metadata = file.metadata;
  std::shared_ptr<const io::SavedAdapter> adapter;
  if (io::holds_adapter(metadata)) adapter = std::make_shared<const io::SavedAdapter>(std::move(file), where);
  const nn::ModelConfig config = adapter ? adapter->model : io::model_config(file, where);
  const nn::FolderFiles files = nn::folder_files(metadata);  // empty if train started with a new model
  OpenedModel opened{.title = config.text(),
                     .config = config,
                     .context = config.context,
                     .tokenizer = text::load_tokenizer(metadata, where)};
  // The vocabulary of a model from a folder may be rounded up. It is then larger than the vocabulary of the
  // tokenizer.
  const std::int64_t tokens = opened.tokenizer->size();
  if (tokens > config.vocabulary || (files.empty() && tokens < config.vocabulary))
    throw FormatError(where + ": the tokenizer has " + std::to_string(tokens) + " tokens, the model " +
                      std::to_string(config.vocabulary));
  if (!files.empty()) opened.end_tokens = io::config_in(files, where).end_tokens;
  if (!adapter) {
    opened.make = [checkpoint, config, where](DType weights, Device device, std::int64_t context) {
      nn::Params params = nn::Params::unset(weights, device);
      nn::Model model = model_with_context(params, config, context);
      checkpoint->restore(std::vector<io::CheckpointFile>{{model_file, params.all()}}, io::Dtypes::convert);
      io::check_finite(params.all(), where);
      return model;
    };
    return opened;
  }
  const std::string& base = adapter->config.base;
  nn::pretrained_info(base);  // throws if the folder no longer exists
  opened.title += ", with an adapter on " + base;
  opened.make = [adapter](DType weights, Device device, std::int64_t context) {
    nn::Pretrained model =
        nn::from_pretrained(adapter->config.base, device, {.dtype = weights, .context = context});
    io::add_adapter(model, *adapter);
    return model.model;
  };
  return opened;
}

// Opens a pretrained model, with an adapter if `adapter` is not empty. `file` contains the tokenizer. Throws
// FormatError if the tokenizer does not match the model.
inline OpenedModel open_pretrained(const nn::PretrainedInfo& info, std::unique_ptr<text::Tokenizer> tokenizer,
                                   const std::string& file, const std::string& adapter,
                                   std::function<nn::Pretrained(Device, const nn::PretrainedOptions&)> read) {
  nn::check_tokenizer(info, *tokenizer, "[tokenizer] " + file);
  return {.title = info.text() + (adapter.empty() ? "" : ", with the adapter " + adapter),
          .config = info.config,
          .context = info.config.context,
          .tokenizer = std::move(tokenizer),
          .end_tokens = info.end_tokens,
          .make = [read = std::move(read), adapter](DType weights, Device device, std::int64_t context) {
            nn::Pretrained model = read(device, {.dtype = weights, .context = context});
            return adapter.empty() ? model.model : with_adapter(std::move(model), adapter);
          }};
}

// The file is opened only once, because it also contains the tokenizer. Without a tokenizer, tokens are
// printed as numbers.
inline OpenedModel open_gguf(const std::string& path, const std::string& adapter) {
  const auto source = std::make_shared<const io::ModelSource>(io::source_of_gguf(path));
  std::unique_ptr<text::Tokenizer> tokenizer;
  if (const auto* its = dynamic_cast<const text::HfTokenizer*>(source->tokenizer.get()))
    tokenizer = std::make_unique<text::HfTokenizer>(*its);
  else
    tokenizer = std::make_unique<text::NumberTokenizer>(source->config.vocabulary);
  return open_pretrained(io::pretrained_info(*source), std::move(tokenizer), path, adapter,
                         [source](Device device, const nn::PretrainedOptions& options) {
                           return io::from_source(*source, device, options);
                         });
}

// Whether the path is a Hugging Face folder or a GGUF file, not a run of train. Throws Error if the path does
// not exist.
inline bool is_folder_of_others(const std::string& path) {
  std::error_code error;
  if (std::filesystem::status(path, error).type() == std::filesystem::file_type::not_found)
    throw Error("[model] " + path + ": does not exist");
  return std::filesystem::exists(path + "/config.json", error) || io::is_gguf_file(path);
}

// Opens a model of any of these kinds, with an adapter if `adapter` is not empty.
inline OpenedModel open_model(const std::string& path, const std::string& adapter = {}) {
  if (!is_folder_of_others(path)) {
    if (adapter.empty()) return open_checkpoint(path);
    throw Error("[model] " + path +
                " is a run of train: --adapter requires a Hugging Face folder or a GGUF file");
  }
  if (io::is_gguf_file(path)) return open_gguf(path, adapter);
  const nn::PretrainedInfo info = nn::pretrained_info(path);
  const std::string file = path + "/tokenizer.json";
  return open_pretrained(
      info,
      text::load_tokenizer({{"tokenizer", "hf"}, {"tokenizer.json", io::read_file(file, "tokenizer")}},
                           "[tokenizer] " + file),
      file, adapter, [path](Device device, const nn::PretrainedOptions& options) {
        return nn::from_pretrained(path, device, options);
      });
}

}  // namespace tg
