// GgufWriter: a model as a GGUF file, which llama.cpp runs.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/interop/gguf_write.h"
#include "io/interop/model_source.h"

namespace tg::io {

struct GgufOptions {
  // Of the weights; none: as they are. Norms, biases and learned positions are f32 in any case, and in a
  // file of q8_0 rows that are no number of blocks are f16, as llama.cpp wants them.
  std::optional<GgufEncoding> encoding = {};
  std::function<void(std::uint64_t written, std::uint64_t all)> written = {};  // as nn::SaveOptions has it
};

class GgufWriter {
 public:
  // Finds out what the file will be, without a look at the weights. The source must outlive the writer.
  // Throws FormatError for a model or a tokenizer that llama.cpp has no architecture for, naming the setting.
  GgufWriter(ModelSource& source, const GgufOptions& options);

  const HfConfig& config() const { return config_; }
  std::string architecture() const;
  std::uint64_t bytes() const { return start_.data_bytes(); }
  GgufEncoding encoding() const { return encoding_; }
  std::int64_t context() const;                                  // that the file states
  std::int64_t not_in_blocks() const { return not_in_blocks_; }  // tensors that are f16 in a file of q8_0
  bool has_tokenizer() const { return has_tokenizer_; }

  // Makes the file, which must not exist: it appears when everything is on the disk, or not at all. Needs
  // memory for one tensor at a time. Throws Error (full disk …), and FormatError for a number that is not
  // finite, or too large for the type.
  void write(const std::string& path);

 private:
  struct Part {
    std::string parameter;
    Shape shape;
    bool is_there;  // else it is zeros
  };
  struct Tensor {
    std::string name;
    Shape shape;
    GgufEncoding encoding;
    std::int64_t heads;
    bool is_plus_one;
    std::vector<Part> parts;    // rows, one after another
    std::vector<float> values;  // or these
  };
  void plan_tensors(std::optional<GgufEncoding> encoding);
  GgufEncoding encoding_for(const std::string& name, const Shape& shape);
  void write_tensor(const Tensor& tensor, const std::function<void(std::string_view)>& write);

  ModelSource& source_;
  GgufOptions options_;
  HfConfig config_;
  GgufStart start_;
  GgufEncoding encoding_ = GgufEncoding::f32;
  std::vector<Tensor> tensors_;
  std::int64_t not_in_blocks_ = 0;
  bool has_tokenizer_ = false;
};

}  // namespace tg::io
