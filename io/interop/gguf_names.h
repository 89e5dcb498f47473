// Where the values of a model's parameters lie among the tensors of a GGUF file, by way of the names that
// Hugging Face's files have (hf_names.h).
#pragma once

#include <string>
#include <vector>

#include <tilegrad/io/files/safetensors.h>
#include <tilegrad/nn/models/model_config.h>

namespace tg::io {

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
