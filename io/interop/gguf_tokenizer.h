// A tokenizer as metadata of a GGUF file, tokenizer.ggml.*.
#pragma once

#include <memory>
#include <string>

#include <tilegrad/io/interop/pretrained.h>
#include <tilegrad/io/text/tokenizer.h>
#include "io/interop/gguf_file.h"
#include "io/interop/gguf_write.h"
#include "io/interop/hf_config.h"

namespace tg::io {

// Ids that no token has up to the model's vocabulary are filled. `files` may have a chat template. Throws
// FormatError, beginning with `where`, for a tokenizer that llama.cpp has no name for.
void write_gguf_tokenizer(const text::Tokenizer& tokenizer, const HfConfig& config,
                          const nn::FolderFiles& files, const std::string& where, GgufStart& to);

// The text of a tokenizer.json with the ids of the file's tokenizer; empty if it has none. Throws FormatError
// for a tokenizer that is not understood.
std::string tokenizer_json_of(const GgufFile& file);

}  // namespace tg::io
