// Maps a model's parameters to the tensors of Hugging Face and GGUF files.
#pragma once

#include <string>
#include <vector>

#include <tilegrad/io/files/safetensors.h>
#include <tilegrad/nn/models/model_config.h>

namespace tg::io {

// ---- Hugging Face. tilegrad uses the same names (for GPT, the names of nanoGPT), so only differences in
// layout are listed.

struct HfTensor {
  std::string name;            // name in the file
  bool is_transposed = false;  // the file's tensor is [columns, rows]
  std::int64_t first_row = 0;  // the parameter's rows begin at this row of the tensor
  Shape shape = {};            // of the file's tensor
};

// Returns the tensor that stores the parameter with this name and shape. `family` and `model` are
// HfConfig::family and HfConfig::model.
HfTensor hf_tensor(const std::string& family, const nn::ModelConfig& model, const std::string& parameter,
                   const Shape& shape);

// Whether a tensor of a file is not a weight of the model. Such tensors are computed buffers, and the weights
// of additional layers that predict further tokens.
bool is_dropped_by_hf(const std::string& family, const std::string& name, std::int64_t layers);

// ---- GGUF. Its names are derived from Hugging Face's names.

// Returns llama.cpp's name for models of a family (HfConfig::family), or "" if it has none.
std::string gguf_architecture(const std::string& family);

// The rows of a tensor that store a parameter or a part of it.
struct GgufRowOrder {
  std::string tensor;
  Shape shape = {};            // of the tensor
  std::int64_t first_row = 0;  // of the tensor
  enum class Change {
    none,
    plus_one,  // the tensor is 1 + the parameter
    // Rows of a head: rotary pairs are i and i + d/2 in the parameter, 2i and 2i + 1 in the tensor.
    pairs,
    // The rows of kv_b_proj [heads·(keys + values), latent] that compute keys, transposed per head: [heads,
    // latent, keys].
    keys,
    // The rows of kv_b_proj that compute values: [heads, values, latent].
    values,
  } change = Change::none;
  std::int64_t heads = 1, keys = 0, values = 0;
};

// Returns the tensors that store the parameter with this name and shape. Usually there is only one. kv_b_proj
// is stored in two tensors (Change::keys and Change::values). gguf_architecture() must know the family.
// Throws Error for an unknown name.
std::vector<GgufRowOrder> gguf_rows(const std::string& family, const nn::ModelConfig& model,
                                    const std::string& parameter, const Shape& shape);

// Copies elements of any dtype from the parameter to the rows of the tensor, and returns the bytes of these
// rows. Change::plus_one is not applied.
std::vector<std::byte> to_place(const GgufRowOrder& place, const TensorView& parameter);
// Writes the rows of the tensor into the bytes of the complete parameter. Other elements of the parameter do
// not change.
void from_place(const GgufRowOrder& place, const TensorView& rows, std::span<std::byte> parameter,
                std::int64_t parameter_rows);

}  // namespace tg::io
