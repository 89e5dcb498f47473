// A model's settings as metadata of a GGUF file.
#pragma once

#include <string>

#include "io/interop/gguf_file.h"
#include "io/interop/gguf_write.h"
#include "io/interop/hf_config.h"

namespace tg::io {

// Writes the keys of the architecture, with which llama.cpp computes what the model does. Throws FormatError,
// beginning with `where`, for a model that it cannot run, naming the setting.
void write_gguf_config(const HfConfig& config, const std::string& where, GgufStart& to);

// The most tokens in a text that it is right for: the model's context, or the shortest window of its layers
// where llama.cpp knows of none.
std::int64_t gguf_context(const HfConfig& config);

// The divisors of rotary frequencies that the file has as a tensor, Llama 3's; else none.
std::vector<float> gguf_rope_divisors(const HfConfig& config);

// The config.json of a file. Throws FormatError for an architecture that is not known, or a key that is
// missing or that none of its Hugging Face classes has.
std::string config_json_of(const GgufFile& file);

}  // namespace tg::io
