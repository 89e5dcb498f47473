// The keys tokenizer.ggml.* of a GGUF file ⇄ a tokenizer.json.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <tilegrad/io/text/hf_tokenizer.h>
#include "io/interop/gguf.h"
#include "io/interop/gguf_start.h"
#include "io/interop/hf_config.h"

namespace tg::io {

// `tokenizer`: null for a model of which only the ids are known. Ids without a token are written as [PAD7].
// Throws FormatError, beginning with `where`, for a tokenizer whose ids llama.cpp would not give. `notes`:
// where it gives them only for some texts. Adds general.name, too, by which llama.cpp treats the spaces after
// some tokens.
void add_gguf_tokenizer(const text::HfTokenizer* tokenizer, const HfConfig& config,
                        const std::string& template_text, const std::string& where, GgufStart& to,
                        std::vector<std::string>& notes);

// Null if the file has none. Throws FormatError, naming file, key and value, for a kind of tokenizer that is
// not known, and for lists that do not fit together.
std::shared_ptr<const text::HfTokenizer> read_gguf_tokenizer(const Gguf& file);

}  // namespace tg::io
