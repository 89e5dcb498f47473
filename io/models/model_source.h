// ModelSource: a model on its way to the files of another program, with its values a parameter at a time.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tilegrad/core/graph/parameter.h>
#include <tilegrad/io/checkpoints/checkpoint.h>
#include <tilegrad/io/files/safetensors.h>
#include <tilegrad/io/models/pretrained.h>
#include <tilegrad/io/text/tokenizer.h>
#include <tilegrad/nn/models/model_config.h>
#include "io/models/hf_config.h"

namespace tg::io {

// The values of a parameter as a mapped file has them: rows of a tensor, or a whole one of [columns, rows].
struct StoredTensor {
  const MappedFile* file;
  TensorView tensor;
  bool is_transposed = false;
  std::string where;  // the file, for messages
};

// The values of a model's or an adapter's parameters, by their names.
class WeightReader {
 public:
  virtual ~WeightReader() = default;
  // Of a parameter that the model has; another is an Error.
  virtual DType dtype(const std::string& parameter) const = 0;
  // In the parameter's shape, row-major. Valid until the next call; for one thread at a time.
  virtual TensorView read(const std::string& parameter) const = 0;
  // Where the values are, if a file has them as they are or transposed. They are then read from there, piece
  // by piece and on several threads.
  virtual std::optional<StoredTensor> stored(const std::string&) const { return std::nullopt; }
};

// A reader of parameters that all are stored.
class StoredWeights : public WeightReader {
 public:
  DType dtype(const std::string& parameter) const override { return stored(parameter)->tensor.dtype; }
  TensorView read(const std::string& parameter) const override;

 private:
  mutable std::vector<std::byte> bytes_;  // of the tensor that was read last
};

struct ModelSource {
  std::string from;        // for messages and reports: the path
  nn::ModelConfig config;  // the parameters are those of config.each_parameter()
  std::unique_ptr<WeightReader> weights = {};
  std::shared_ptr<const text::Tokenizer> tokenizer = {};  // null: none
  // The small files of the Hugging Face folder that the model came from, by name; none if it came from none.
  nn::FolderFiles files = {};
  std::vector<std::string> dropped = {};  // tensors of the file that the model does not need

  std::vector<DType> dtypes() const;  // of the weights, each once
};

// Throws FormatError, "<where> the tokenizer has …", for one with more tokens than the model.
void require_tokenizer_fits(const text::Tokenizer& tokenizer, const nn::ModelConfig& config,
                            const std::string& where);

// "f32 and bf16".
std::string names_of(const std::vector<DType>& dtypes);

// A model in memory. Throws Error for parameters that are not those of the config, and FormatError for layers
// that compute something else.
ModelSource source_of(const std::vector<Parameter>& parameters, const nn::ModelConfig& config);
// A checkpoint of train, or its run. Its file is read into memory. Throws as Checkpoint::load, and
// FormatError for a tokenizer that is not the model's.
ModelSource source_of_checkpoint(const std::string& path);
// Of the checkpoint in that directory whose model.safetensors is loaded.
ModelSource source_of_checkpoint(SafeTensors file, const std::string& directory);
// A Hugging Face folder: config.json; model.safetensors, or model.safetensors.index.json and the shards that
// it names; perhaps generation_config.json, and tokenizer.json, which is read if with_tokenizer. Weights are
// mapped and not read until they are needed. Checks the config, the rules of the format, and that the tensors
// are those of the model: each parameter's once, of its shape, of a floating type, and no others except those
// that are dropped. Throws Error for a file that cannot be read, FormatError for what does not fit, in one
// line with file, key and value.
ModelSource source_of_folder(const std::string& path, bool with_tokenizer = true);

// A GGUF file, which is mapped. Its files are a config.json that says the same as its keys, and perhaps a
// chat template. Throws Error for a file that cannot be read, FormatError, naming file, key and value, for
// what does not fit.
ModelSource source_of_gguf(const std::string& path);

// A Hugging Face folder or a GGUF file, whose tokenizer is always read. Throws the same.
ModelSource source_at(const std::string& path, bool with_tokenizer = true);

// Writes values into parameters, which the reader has, in whatever floating dtype: rounded to the nearest of
// it, of two the even one. Throws FormatError, beginning with the file or `where`, for a number that is not
// finite, or too large for the dtype; then some are written already.
void load(const WeightReader& weights, const std::string& where, const std::vector<Parameter>& parameters);
void load(const ModelSource& source, const std::vector<Parameter>& parameters);

// nn::pretrained_info() and nn::from_pretrained() of a source that is open, whose files have a config.json.
nn::PretrainedInfo pretrained_info(const ModelSource& source);
nn::Pretrained from_source(const ModelSource& source, Device device, const nn::PretrainedOptions& options);

// What the small files of a folder say of its model: config.json, and the ids of generation_config.json if it
// is there. Throws FormatError, beginning with `where`.
HfConfig config_in(const nn::FolderFiles& files, const std::string& where);

// The config with which Hugging Face's classes open the model: that of its files, if it is still the model's,
// or hf_config_for(). The ids of tokens that begin and end a text are those of the files, or the tokenizer's.
HfConfig hf_config_of(const ModelSource& source, const std::string& where);

}  // namespace tg::io
