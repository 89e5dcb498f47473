// Names of architectures and tensors in GGUF files, as llama.cpp has them.
#pragma once

#include <string>
#include <vector>

#include "io/interop/hf_config.h"
#include "io/interop/hf_names.h"

namespace tg::io {

// The architecture of a Hugging Face family: "llama" of llama and mistral. Empty if there is none here.
std::string gguf_architecture(const std::string& family);

// Where a tensor of a Hugging Face file lies in a GGUF file. Linear layers are [outputs, inputs] in all of
// them.
struct GgufTensorName {
  std::string name;          // empty: it has no place
  std::int64_t heads = 0;    // of so many heads, rows are in another order (interleaved_row); 0: of none
  bool is_plus_one = false;  // 1 + the values
};
GgufTensorName gguf_tensor_name(const HfConfig& config, const std::string& hf_name);

// llama.cpp rotates neighbouring rows of a head of Llama, transformers the rows of its halves: the row of
// the first that is row `row` of the second, of a head of `width` rows.
std::int64_t interleaved_row(std::int64_t row, std::int64_t width);

}  // namespace tg::io
