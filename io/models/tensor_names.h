// Where the values of a model's parameters lie among the tensors of a Hugging Face file and of a GGUF file.
#pragma once

#include <string>
#include <vector>

#include <tilegrad/io/files/safetensors.h>
#include <tilegrad/nn/models/model_config.h>

namespace tg::io {

// ---- Hugging Face. Names are theirs (for GPT, nanoGPT's, which are the same), so only what lies otherwise
// is listed.

struct HfTensor {
  std::string name;            // theirs
  bool is_transposed = false;  // theirs is [columns, rows]
  std::int64_t first_row = 0;  // ours is that row of theirs and those after it
  Shape shape = {};            // theirs
};

// Of the parameter of that name and shape, of a model of a family (HfConfig::family, HfConfig::model).
HfTensor hf_tensor(const std::string& family, const nn::ModelConfig& model, const std::string& parameter,
                   const Shape& shape);

// Whether a tensor of theirs is not a weight that the model has: buffers that are computed, and layers that
// predict further tokens, which follow the `layers` of the model.
bool is_dropped_by_hf(const std::string& family, const std::string& name, std::int64_t layers);

// ---- GGUF, by way of the names that Hugging Face's files have

// llama.cpp's name for models of a family (HfConfig::family); "" if it has none.
std::string gguf_architecture(const std::string& family);

// A parameter's rows in a tensor.
struct GgufPlace {
  std::string tensor;
  Shape shape = {};            // the tensor's
  std::int64_t first_row = 0;  // of it
  enum class Change {
    none,
    plus_one,  // the tensor is 1 + the parameter
    // Rows of a head: what turns together is i and i + d/2 here, 2i and 2i + 1 there.
    pairs,
    // Of kv_b_proj [heads·(keys + values), latent], the rows that make keys, each head's transposed, as
    // [heads, latent, keys]; and those that make values, as [heads, values, latent].
    keys,
    values,
  } change = Change::none;
  std::int64_t heads = 1, keys = 0, values = 0;
};

// Of the parameter of that name and shape, of a model of a family that gguf_architecture() knows: one place,
// or for Change::keys and values two. A name that no parameter has is an Error.
std::vector<GgufPlace> gguf_places(const std::string& family, const nn::ModelConfig& model,
                                   const std::string& parameter, const Shape& shape);

// Moves numbers of any type between the parameter and the place; Change::plus_one is not done. `to` has the
// bytes of the rows, or, from_place(), of the whole parameter, of which it writes what the place has.
std::vector<std::byte> to_place(const GgufPlace& place, const TensorView& parameter);
void from_place(const GgufPlace& place, const TensorView& rows, std::span<std::byte> parameter,
                std::int64_t parameter_rows);

}  // namespace tg::io
