// GgufStart: what a new GGUF file has before its data.
#pragma once

#include "io/interop/gguf_format.h"

namespace tg::io {

class GgufStart {
 public:
  void add(const std::string& key, std::uint32_t value);
  void add(const std::string& key, float value);
  void add(const std::string& key, bool value);
  void add(const std::string& key, const std::string& value);
  void add(const std::string& key, const std::vector<std::string>& items);
  void add(const std::string& key, const std::vector<std::int32_t>& items);
  void add(const std::string& key, const std::vector<float>& items);
  void add_booleans(const std::string& key, const std::vector<bool>& items);
  void add(const std::string& key, const char* value) { add(key, std::string(value)); }
  // In the order of their data. The last size is a multiple of gguf_block().
  void add_tensor(const std::string& name, GgufType type, const std::vector<std::int64_t>& shape);

  std::string bytes() const;  // with the zeros after it; gguf_padding() follows each tensor's bytes

 private:
  void begin(const std::string& key, GgufKind kind);
  std::string keys_, tensors_;
  std::int64_t key_count_ = 0, tensor_count_ = 0;
  std::uint64_t offset_ = 0;
};

}  // namespace tg::io
