// HfFolder: a Hugging Face folder, opened: its config, and its weights under the names of our parameters.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <tilegrad/core/graph/parameter.h>
#include <tilegrad/io/files/safetensors.h>
#include <tilegrad/io/interop/pretrained.h>
#include "io/interop/hf_config.h"
#include "io/interop/tensor_names.h"

namespace tg::io {

// Files: config.json; model.safetensors, or model.safetensors.index.json and the shards that it names;
// perhaps generation_config.json. Weights are mapped and not read until they are needed.
class HfFolder {
 public:
  // Checks the config, the rules of the format, and that the tensors are those of the model: each parameter's
  // once, of its shape, of a floating type, and no others except those that are dropped. Allocates nothing
  // for the model. Throws Error for a file that cannot be read, FormatError for what does not fit, in one
  // line with file, key and value.
  explicit HfFolder(const std::string& path);

  const HfConfig& config() const { return config_; }
  const std::string& path() const { return path_; }
  const std::vector<std::string>& files() const { return files_; }      // of weights, plain names
  const std::vector<std::string>& dropped() const { return dropped_; }  // tensors that are not used
  std::vector<DType> dtypes() const;                                    // of the weights, each once
  std::uint64_t bytes() const;                                          // of the weights

  // The files of folder_file_names that the folder has.
  const nn::FolderFiles& small_files() const { return small_files_; }

  // The values of a parameter as they lie in a file: rows of one of its tensors, or a whole one of [columns,
  // rows]. Throws Error for a parameter that the model does not have.
  struct Values {
    TensorView tensor;
    bool is_transposed = false;
    std::size_t file = 0;
  };
  Values values(const std::string& parameter) const;
  void read(const Values& values, std::vector<std::byte>& to) const;  // copies their bytes

  // Writes values into parameters of the model, which have the names that each_parameter() of the config has,
  // in whatever floating dtype: rounded to the nearest of it, of two the even one. Throws FormatError for a
  // number that is not finite, or too large for the dtype; then some are written already.
  // Reads on several threads.
  void load(const std::vector<Parameter>& parameters) const;

 private:
  struct Place {
    std::size_t file;
    const TensorView* tensor;
    HfTensor theirs;
    Shape shape = {};  // of the parameter
  };
  struct Part {  // of a parameter's values, those from element `first` on
    Parameter to;
    Values values;
    std::int64_t first;
  };
  std::vector<Part> parts_of(const Parameter& parameter) const;
  void open_files();
  std::string tensor_name(const std::string& name) const;
  void match();
  void check_tied_head(const Place& embedding, const Place& head) const;
  std::string where(std::size_t file) const;

  std::string path_;
  nn::FolderFiles small_files_;
  HfConfig config_;
  std::vector<std::string> files_;
  std::vector<MappedSafeTensors> mapped_;
  std::map<std::string, Place> found_;   // every tensor of the files, by its name
  std::map<std::string, Place> places_;  // those that are used, by the parameter's name
  std::vector<std::string> dropped_;
};

}  // namespace tg::io
