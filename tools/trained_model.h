// The model of a checkpoint that train wrote, with its weights and its tokenizer.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <tilegrad/io/checkpoints/checkpoint.h>
#include <tilegrad/io/checkpoints/model_file.h>
#include <tilegrad/io/text/tokenizer.h>
#include <tilegrad/nn/layers/autocast.h>
#include <tilegrad/nn/models/model.h>
#include "tools/cache_memory.h"
#include "tools/train_report.h"

namespace tg {

inline constexpr const char* model_file = "model.safetensors";

// What a checkpoint says of its model: the configuration, and the metadata it was read from.
struct CheckpointModel {
  io::Checkpoint checkpoint;
  std::string where;  // the file, for messages
  io::Metadata metadata;
  nn::ModelConfig config;

  // `path`: a run's directory or a checkpoint's. Throws Error and FormatError as Checkpoint does.
  explicit CheckpointModel(const std::string& path)
      : checkpoint(path), where(checkpoint.directory() + "/" + model_file) {
    io::SafeTensors file = checkpoint.load(model_file);
    config = io::model_config(file, where);
    metadata = std::move(file.metadata);
  }

  // Throws FormatError when there is none, or it is not the model's.
  std::unique_ptr<text::Tokenizer> tokenizer() const {
    auto made = text::load_tokenizer(metadata, where);
    if (made->size() != config.vocabulary)
      throw FormatError(where + ": the tokenizer has " + std::to_string(made->size()) +
                        " tokens, the model " + std::to_string(config.vocabulary));
    return made;
  }

  // Gives a model's parameters their values, rounded to their dtype. Throws FormatError also for a NaN or an
  // infinity among them.
  void restore(const nn::Params& params) const {
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
