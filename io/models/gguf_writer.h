// GgufWriter: writes a model as a GGUF file.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/models/gguf_metadata.h"
#include "io/models/model_source.h"
#include "io/models/tensor_names.h"

namespace tg::io {

class GgufWriter {
 public:
  // Determines the content of the file without reading the weights. The source must outlive the writer.
  // Throws FormatError, with the setting, for a model or a tokenizer that llama.cpp does not support. Throws
  // Error for an unknown options.dtype.
  GgufWriter(ModelSource& source, const nn::GgufOptions& options);

  const std::string& architecture() const { return architecture_; }
  GgufType type() const { return type_; }         // of matrices
  std::uint64_t bytes() const { return bytes_; }  // size of all tensors
  bool has_tokenizer() const { return has_tokenizer_; }
  // Notes for the user, one sentence each. They report different results in llama.cpp, and tensors of a
  // different type.
  const std::vector<std::string>& notes() const { return notes_; }

  // Creates the file, which must not exist. The file appears when all its data is on disk, or not at all.
  // Needs memory for one tensor at a time. Throws Error if writing fails, for example because the disk is
  // full. Throws FormatError if a number is not finite or too large for the type.
  void write(const std::string& path);

 private:
  struct Part {  // rows of the tensor, after the rows of the previous part
    std::string parameter;
    Shape shape;
    GgufRowOrder place;
    bool is_there;  // otherwise the rows are zeros
  };
  struct Tensor {
    std::string name;
    GgufType type = GgufType::f32;
    std::vector<std::int64_t> shape = {};
    std::vector<Part> parts = {};
    std::vector<float> factors = {};  // values of a GgufFactors tensor, which has no parts
  };
  void plan_tensors(const HfConfig& config);
  GgufType type_of(const GgufRowOrder& place);
  void write_part(const Tensor& tensor, const Part& part, const std::function<void(std::string_view)>& write);

  ModelSource& source_;
  nn::GgufOptions options_;
  std::string architecture_;
  GgufType type_ = GgufType::f32;
  std::vector<Tensor> tensors_;
  std::vector<std::string> notes_;
  bool has_tokenizer_ = false;
  std::uint64_t bytes_ = 0;
  GgufStart start_;
};

}  // namespace tg::io
