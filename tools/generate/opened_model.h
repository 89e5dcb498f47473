// The model that generate writes with: of a checkpoint of train, a Hugging Face folder, or a GGUF file.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tilegrad/io/files/file.h>
#include <tilegrad/io/interop/pretrained.h>
#include "io/interop/gguf_tokenizer.h"
#include "tools/trained_model.h"

namespace tg {

// What is known before the weights are read.
struct OpenedModel {
  std::string title;         // for the report: config.text(), or the family and its size
  std::int64_t context = 0;  // the most tokens in a text
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::vector<std::int64_t> end_tokens;  // any of them ends a text
  std::function<nn::Model(DType weights, Device device)> load;

  bool is_end(std::int32_t token) const {
    return std::find(end_tokens.begin(), end_tokens.end(), token) != end_tokens.end();
  }
};

// `context`: at most so many tokens; 0: as many as the model was made for.
inline OpenedModel open_checkpoint(const std::string& path, std::int64_t context) {
  const auto saved = std::make_shared<const CheckpointModel>(path);
  if (context > saved->config.context)
    throw ShapeError(saved->where + ": expected a context up to " + std::to_string(saved->config.context) +
                     ", got " + std::to_string(context));
  if (context == 0) context = saved->config.context;
  return {.title = saved->config.text(),
          .context = context,
          .tokenizer = saved->tokenizer(),
          .end_tokens = saved->end_tokens(),
          .load = [saved, context](DType weights, Device device) {
            nn::Params params = nn::Params::unset(weights, device);
            nn::Model model = model_with_context(params, saved->config, context);
            saved->restore(params);
            return model;
          }};
}

// A file without a tokenizer has tokens that are numbers.
inline std::unique_ptr<text::Tokenizer> tokenizer_of_gguf(const std::string& path, std::int64_t vocabulary) {
  const auto found = io::read_gguf_tokenizer(io::MappedGguf(path, "generate").gguf);
  if (found == nullptr) return std::make_unique<text::NumberTokenizer>(vocabulary);
  return std::make_unique<text::HfTokenizer>(*found);
}

// Of a folder, or a GGUF file. `context`: at most so many tokens; 0: as many as it says. Throws FormatError
// for a tokenizer of another model.
inline OpenedModel open_folder(const std::string& path, std::int64_t context) {
  const nn::PretrainedInfo info = nn::pretrained_info(path);
  const bool is_file = io::is_gguf_file(path);
  const std::string file = is_file ? path : path + "/tokenizer.json";
  std::unique_ptr<text::Tokenizer> tokenizer;
  if (is_file)
    tokenizer = tokenizer_of_gguf(path, info.config.vocabulary);
  else
    tokenizer = text::load_tokenizer(
        {{"tokenizer", "hf"}, {"tokenizer.json", io::read_file(file, "generate")}}, "[generate] " + file);
  nn::check_tokenizer(info, *tokenizer, "[generate] " + file);
  return {.title = info.text(),
          .context = context > 0 ? context : info.config.context,
          .tokenizer = std::move(tokenizer),
          .end_tokens = info.end_tokens,
          .load = [path, context](DType weights, Device device) {
            return nn::from_pretrained(path, device, {.dtype = weights, .context = context}).model;
          }};
}

}  // namespace tg
