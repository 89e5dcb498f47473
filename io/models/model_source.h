// ModelSource: a model whose values are read one parameter at a time, for example to write it in a different
// format.
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

// The location of a parameter's values in a mapped file: rows of a tensor, or a complete transposed tensor
// [columns, rows].
struct StoredTensor {
  const MappedFile* file;
  TensorView tensor;
  bool is_transposed = false;
  std::string where;  // the file, for messages
};

// Reads the values of a model's or an adapter's parameters by name.
class WeightReader {
 public:
  virtual ~WeightReader() = default;
  // Returns the dtype of a parameter's stored values. Throws Error for an unknown parameter.
  virtual DType dtype(const std::string& parameter) const = 0;
  // Returns the values in the parameter's shape, row-major. Valid until the next call. Not thread-safe.
  virtual TensorView read(const std::string& parameter) const = 0;
  // If a file stores the values unchanged or transposed, returns their location. They are then read from the
  // file in pieces and on several threads.
  virtual std::optional<StoredTensor> stored(const std::string&) const { return std::nullopt; }
};

// A reader whose parameters are all stored in mapped files.
class StoredWeights : public WeightReader {
 public:
  DType dtype(const std::string& parameter) const override { return stored(parameter)->tensor.dtype; }
  TensorView read(const std::string& parameter) const override;

 private:
  mutable std::vector<std::byte> bytes_;  // of the latest tensor that was read
};

struct ModelSource {
  std::string from;        // for messages and reports: the path
  nn::ModelConfig config;  // the parameters are listed by config.each_parameter()
  std::unique_ptr<WeightReader> weights = {};
  std::shared_ptr<const text::Tokenizer> tokenizer = {};  // null: none
  // The small files of the model's Hugging Face folder, by name; empty if it was not loaded from one.
  nn::FolderFiles files = {};
  std::vector<std::string> dropped = {};  // tensors of the file that the model does not need

  std::vector<DType> dtypes() const;  // of the weights, without duplicates
};

// Throws FormatError, "<where> the tokenizer has …", if the tokenizer has more tokens than the model.
void require_tokenizer_fits(const text::Tokenizer& tokenizer, const nn::ModelConfig& config,
                            const std::string& where);

// Returns a list such as "f32 and bf16".
std::string names_of(const std::vector<DType>& dtypes);

// Returns a source for a model in memory. Throws Error if the parameters do not match the config, and
// FormatError if settings of the layers differ from the config.
ModelSource source_of(const std::vector<Parameter>& parameters, const nn::ModelConfig& config);
// Returns a source for a checkpoint of train, or for the last checkpoint of a run. Reads its file into
// memory. Throws the errors of Checkpoint::load, and FormatError if the tokenizer does not fit the model.
ModelSource source_of_checkpoint(const std::string& path);
// Does the same for the loaded model.safetensors of the checkpoint in this directory.
ModelSource source_of_checkpoint(SafeTensors file, const std::string& directory);
// Returns a source for a Hugging Face folder:
// - Required files: config.json, and model.safetensors or model.safetensors.index.json with its shards.
// - Optional files: generation_config.json, and tokenizer.json, which is read if with_tokenizer is true.
//
// Weights are mapped and not read until they are needed. Checks the config and the rules of the format. Also
// checks that the tensors are exactly the model's parameters, with their shapes and a floating dtype. Tensors
// that the model does not need are ignored (`dropped`). Throws Error if a file cannot be read. Throws
// FormatError, with file, key and value, if the model does not fit.
ModelSource source_of_folder(const std::string& path, bool with_tokenizer = true);

// Returns a source for a GGUF file, which is mapped. Its `files` are a config.json equivalent to its keys,
// and perhaps a chat template. Throws Error if the file cannot be read. Throws FormatError, with file, key
// and value, if the model does not fit.
ModelSource source_of_gguf(const std::string& path);

// Returns a source for a Hugging Face folder or a GGUF file. The tokenizer of a GGUF file is always read.
// Throws the errors of the two functions above.
ModelSource source_at(const std::string& path, bool with_tokenizer = true);

// Copies the values of all parameters from the reader, which must have all of them. Values may have any
// floating dtype and are rounded to the parameter's dtype (nearest, ties to even). Throws FormatError if a
// number is not finite or too large for the dtype. The message begins with the file or `where`. Some
// parameters may then already be written.
void load(const WeightReader& weights, const std::string& where, const std::vector<Parameter>& parameters);
void load(const ModelSource& source, const std::vector<Parameter>& parameters);

// As nn::pretrained_info() and nn::from_pretrained(), for a source that is already open. Its files must
// include a config.json.
nn::PretrainedInfo pretrained_info(const ModelSource& source);
nn::Pretrained from_source(const ModelSource& source, Device device, const nn::PretrainedOptions& options);

// Returns the configuration in a folder's small files: config.json, and the ids of generation_config.json if
// it exists. Throws FormatError with a message that begins with `where`.
HfConfig config_in(const nn::FolderFiles& files, const std::string& where);

// Returns the config with which Hugging Face's classes open the model. If the config in the model's files
// still describes the model, it is used, otherwise hf_config_for(). Start and end token ids are taken from
// the files or, if there are none, from the tokenizer.
HfConfig hf_config_of(const ModelSource& source, const std::string& where);

}  // namespace tg::io
