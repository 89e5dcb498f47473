// What a GGUF file begins with: its metadata, and the table of its tensors.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "io/interop/gguf_file.h"

namespace tg::io {

class GgufStart {
 public:
  // Metadata, in the order of the calls. A key is set once.
  void u32(const std::string& key, std::int64_t value);
  void f32(const std::string& key, double value);
  void boolean(const std::string& key, bool value);
  void string(const std::string& key, std::string_view value);
  void strings(const std::string& key, const std::vector<std::string>& values);
  void i32s(const std::string& key, const std::vector<std::int32_t>& values);
  void f32s(const std::string& key, const std::vector<float>& values);
  void booleans(const std::string& key, const std::vector<bool>& values);

  // A tensor, whose bytes follow those of the one before it, padded to gguf_alignment. Rows are a number of
  // blocks.
  void tensor(const std::string& name, GgufEncoding encoding, const std::vector<std::int64_t>& shape);

  std::string bytes() const;  // padded, so that the bytes of the first tensor follow
  std::uint64_t data_bytes() const { return offset_; }  // of all tensors, padded

 private:
  void key(const std::string& key, GgufType type);
  void array(const std::string& key, GgufType element, std::size_t count);

  std::string values_, tensors_;
  std::uint64_t value_count_ = 0, tensor_count_ = 0, offset_ = 0;
};

std::uint64_t gguf_padding(std::uint64_t bytes);  // to the next multiple of gguf_alignment

}  // namespace tg::io
