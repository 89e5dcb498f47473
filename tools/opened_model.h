// The model that a tool reads: of a checkpoint of train, a Hugging Face folder, or a GGUF file.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tilegrad/io/files/file.h>
#include <tilegrad/io/interop/peft.h>
#include <tilegrad/io/interop/pretrained.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include "io/interop/gguf.h"
#include "io/interop/model_source.h"
#include "tools/trained_model.h"

namespace tg {

// What is known before the weights are read.
struct OpenedModel {
  std::string title;         // for the report: config.text(), or the family and its size
  std::int64_t context = 0;  // the most tokens in a text
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::vector<std::int64_t> end_tokens = {};  // any of them ends a text
  std::function<nn::Model(DType weights, Device device, std::int64_t context)> make;

  nn::Model load(DType weights, Device device) const { return make(weights, device, context); }
  // A shorter context. Throws ShapeError for a longer one than the model's.
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

// The model of a folder with an adapter: a PEFT folder, or a run of train --lora.
inline nn::Model with_adapter(nn::Pretrained model, const std::string& adapter) {
  std::error_code error;
  if (std::filesystem::exists(adapter + "/adapter_config.json", error))
    nn::load_adapter(model, adapter);
  else
    io::add_adapter(model, io::saved_adapter(adapter));
  return model.model;
}

inline OpenedModel open_checkpoint(const std::string& path) {
  const auto saved = std::make_shared<const CheckpointModel>(path);
  if (saved->adapter) {
    const std::string base = saved->adapter->config.base;
    nn::pretrained_info(base);  // it is still there
    return {.title = saved->config.text() + ", with an adapter on " + base,
            .context = saved->config.context,
            .tokenizer = saved->tokenizer(),
            .end_tokens = saved->end_tokens(),
            .make = [saved, base](DType weights, Device device, std::int64_t context) {
              nn::Pretrained model =
                  nn::from_pretrained(base, device, {.dtype = weights, .context = context});
              io::add_adapter(model, *saved->adapter);
              return model.model;
            }};
  }
  return {.title = saved->config.text(),
          .context = saved->config.context,
          .tokenizer = saved->tokenizer(),
          .end_tokens = saved->end_tokens(),
          .make = [saved](DType weights, Device device, std::int64_t context) {
            nn::Params params = nn::Params::unset(weights, device);
            nn::Model model = model_with_context(params, saved->config, context);
            saved->restore(params);
            return model;
          }};
}

// Of what says so much of itself, with an adapter, unless that is empty. Throws FormatError for a tokenizer
// of another model, which is in `file`.
inline OpenedModel open_pretrained(const nn::PretrainedInfo& info, std::unique_ptr<text::Tokenizer> tokenizer,
                                   const std::string& file, const std::string& adapter,
                                   std::function<nn::Pretrained(Device, const nn::PretrainedOptions&)> read) {
  nn::check_tokenizer(info, *tokenizer, "[tokenizer] " + file);
  return {.title = info.text() + (adapter.empty() ? "" : ", with the adapter " + adapter),
          .context = info.config.context,
          .tokenizer = std::move(tokenizer),
          .end_tokens = info.end_tokens,
          .make = [read = std::move(read), adapter](DType weights, Device device, std::int64_t context) {
            nn::Pretrained model = read(device, {.dtype = weights, .context = context});
            return adapter.empty() ? model.model : with_adapter(std::move(model), adapter);
          }};
}

// The file is opened once: it has the tokenizer, too. One without a tokenizer has tokens that are numbers.
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

// Of a folder, or a GGUF file; with `adapter`, unless it is empty.
inline OpenedModel open_folder(const std::string& path, const std::string& adapter = {}) {
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

// Whether the path is a Hugging Face folder or a GGUF file, not a run of train. Throws Error if nothing has
// that path.
inline bool is_folder_of_others(const std::string& path) {
  std::error_code error;
  if (std::filesystem::status(path, error).type() == std::filesystem::file_type::not_found)
    throw Error("[model] " + path + ": does not exist");
  return std::filesystem::exists(path + "/config.json", error) || io::is_gguf_file(path);
}

// Of any of them, whichever the path is; with `adapter`, unless it is empty.
inline OpenedModel open_model(const std::string& path, const std::string& adapter = {}) {
  if (is_folder_of_others(path)) return open_folder(path, adapter);
  if (!adapter.empty())
    throw Error("[model] " + path +
                " is a run of train: an adapter is added to a Hugging Face folder or a GGUF file");
  return open_checkpoint(path);
}

}  // namespace tg
