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
#include <tilegrad/io/interop/pretrained.h>
#include <tilegrad/io/text/tokenizer.h>
#include <tilegrad/nn/models/model_config.h>
#include "io/interop/hf_folder.h"

namespace tg::io {

// The values of a model's parameters.
class WeightReader {
 public:
  virtual ~WeightReader() = default;
  // Of a parameter that the model has; another is an Error.
  virtual DType dtype(const std::string& parameter) const = 0;
  // In the parameter's shape, row-major. Valid until the next call.
  virtual TensorView read(const std::string& parameter) = 0;
};

struct ModelSource {
  std::string from;        // for messages and reports: the path
  nn::ModelConfig config;  // the parameters are those of config.each_parameter()
  std::unique_ptr<WeightReader> weights;
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
// A Hugging Face folder, whose files are mapped. Throws as HfFolder and HfTokenizer. A folder without
// tokenizer.json has none.
ModelSource source_of_folder(const std::string& path);

// A GGUF file, which is mapped. Its files are a config.json that says the same as its keys, and perhaps a
// chat template. Throws Error for a file that cannot be read, FormatError, naming file, key and value, for
// what does not fit.
ModelSource source_of_gguf(const std::string& path);

// Reads the values of parameters, which the source has. Throws FormatError for a number that is not finite,
// or too large for the dtype; then some are written already.
void load(const ModelSource& source, const std::vector<Parameter>& parameters);

// A Hugging Face folder or a GGUF file. Throws the same.
ModelSource source_at(const std::string& path);

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
