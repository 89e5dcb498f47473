// HfWriter: writes a model as a Hugging Face folder.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "io/models/model_source.h"

namespace tg::io {

class HfWriter {
 public:
  // Determines the content of every file without reading the weights. The source must outlive the writer.
  // Throws FormatError, with the settings, for a model that no class can represent. Throws Error for a
  // tokenizer that tokenizer.json cannot represent.
  HfWriter(ModelSource& source, const nn::SaveOptions& options);

  const HfConfig& config() const { return config_; }
  std::uint64_t bytes() const { return bytes_; }  // of the weights
  std::vector<std::string> files() const;         // file names
  std::vector<DType> dtypes() const;              // of the weights, without duplicates
  bool has_tokenizer() const { return !tokenizer_.empty(); }

  // Creates the folder, which must not exist. The folder appears when all its data is on disk, or not at all.
  // Needs memory for one tensor at a time. Throws Error if writing fails, for example because the disk is
  // full. Throws FormatError if a number is not finite or too large for the dtype.
  void write(const std::string& folder);

 private:
  struct Part {  // a parameter: rows of the tensor
    std::string parameter;
    Shape shape;
    std::int64_t first_row;
    bool is_there;  // otherwise the rows are zeros
  };
  struct Tensor {
    DType dtype = f32;
    Shape shape = {};
    bool is_transposed = false;
    std::vector<Part> parts = {};
    std::uint64_t bytes() const { return static_cast<std::uint64_t>(numel(shape)) * size_of(dtype); }
  };
  void plan_tensors(std::optional<DType> dtype);
  void plan_shards(std::uint64_t most);
  std::string shard_name(std::size_t shard) const;
  std::string config_text() const;
  std::string tokenizer_config_text() const;
  void write_shard(const std::string& path, const std::vector<std::string>& names);
  void write_tensor(const Tensor& tensor, const std::function<void(std::string_view)>& write);
  std::string index_text() const;

  ModelSource& source_;
  nn::SaveOptions options_;
  HfConfig config_;
  std::string tokenizer_;  // content of tokenizer.json; empty: none
  std::map<std::string, Tensor> tensors_;
  std::vector<std::string> order_;  // tensor names, in the order in which the model creates them
  std::vector<std::vector<std::string>> shards_;  // tensors of each file
  std::uint64_t bytes_ = 0, written_ = 0;
};

}  // namespace tg::io
