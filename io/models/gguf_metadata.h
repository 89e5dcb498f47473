// The meaning of the keys of a GGUF file: the model that its tensors belong to, and its tokenizer. Writes and
// reads both.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include <tilegrad/io/text/hf_tokenizer.h>
#include "io/files/gguf.h"
#include "io/files/gguf_format.h"
#include "io/models/hf_config.h"
#include "io/text/hf_stages.h"

namespace tg::io {

// ---- The model

// Adds the keys from which llama.cpp computes the same as the model. Adds a note if that is true only for
// some sequences. Throws FormatError, beginning with `where` and naming setting and value, for a model that
// llama.cpp lacks.
void add_gguf_config(const HfConfig& config, const std::string& where, GgufStart& to,
                     std::vector<std::string>& notes);

// Small f32 tensors that are not parameters: divisors of rotary frequencies, by name.
struct GgufFactors {
  std::string tensor;
  std::vector<float> values;
};
std::vector<GgufFactors> gguf_factors(const HfConfig& config);

// Returns the model of a file as the configuration of a Hugging Face class. Throws FormatError, naming file,
// key and value, for an unknown architecture and for a configuration that parse_hf_config() rejects. Adds
// tensors that were read but are not parameters to `tensors`.
HfConfig read_gguf_config(const Gguf& file, std::set<std::string>* tensors = nullptr);

// Call it after the model and the tokenizer have been read. Throws FormatError, naming key and value, for a
// key that was not read and is not known to be informative.
void check_gguf_keys(const Gguf& file);

// ---- The tokenizer: keys tokenizer.ggml.* ⇄ a tokenizer.json

// `tokenizer` is null for a model whose tokens are known only by id. Ids without a token are written as
// [PAD7]. Throws FormatError, beginning with `where`, for a tokenizer whose ids llama.cpp cannot reproduce.
// Adds a note if it reproduces them only for some inputs. Also adds general.name, from which llama.cpp
// derives how it treats spaces after some tokens.
void add_gguf_tokenizer(const text::HfTokenizer* tokenizer, const HfConfig& config,
                        const std::string& template_text, const std::string& where, GgufStart& to,
                        std::vector<std::string>& notes);

// Returns null if the file has no tokenizer. Throws FormatError, naming file, key and value, for an unknown
// kind of tokenizer and for inconsistent lists.
std::shared_ptr<const text::HfTokenizer> read_gguf_tokenizer(const Gguf& file);

// ---- llama.cpp's names for the rules that split text into words

struct GgufPreTokenizer {
  const char* name;
  std::vector<text::SplitStep> splits;
  bool nfc = false, ignores_merges = false;
  // llama.cpp keeps digits together; our rule splits them. Ids are equal if no merge joins two digits.
  bool keeps_digits = false;
  bool is_only_read = false;  // llama.cpp splits some strings differently, so it is never written
};

// Returns null for an unknown name.
const GgufPreTokenizer* gguf_pre_tokenizer(const std::string& name);
std::string known_gguf_pre_tokenizers();
// Returns the one that splits text like a byte-level tokenizer. Throws FormatError, beginning with `where`,
// if there is none.
const GgufPreTokenizer& gguf_pre_tokenizer_of(const text::HfTokenizer& tokenizer, const std::string& where);

}  // namespace tg::io
