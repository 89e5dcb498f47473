// Writes and reads the keys of a GGUF file. They describe the model to which the tensors belong, and its
// tokenizer.
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

// Adds the keys from which llama.cpp computes the same results as the model. Adds a note if that is true only
// for some sequences. Throws FormatError if llama.cpp does not support the model. The message begins with
// `where` and contains the setting and its value.
void add_gguf_config(const HfConfig& config, const std::string& where, GgufStart& to,
                     std::vector<std::string>& notes);

// Small f32 tensors that are not parameters: divisors of rotary frequencies, by name.
struct GgufFactors {
  std::string tensor;
  std::vector<float> values;
};
std::vector<GgufFactors> gguf_factors(const HfConfig& config);

// Returns the model of a file as the configuration of a Hugging Face class. Throws FormatError for an unknown
// architecture and for a configuration that parse_hf_config() rejects. The message contains the file, the key
// and its value. Adds tensors that were read but are not parameters to `tensors`.
HfConfig read_gguf_config(const Gguf& file, std::set<std::string>* tensors = nullptr);

// Must be called after the model and the tokenizer have been read. Throws FormatError if a key was not read
// and is not known to have no effect. The message contains the key and its value.
void check_gguf_keys(const Gguf& file);

// ---- The tokenizer: keys tokenizer.ggml.* ⇄ a tokenizer.json

// Adds the keys of a tokenizer. `tokenizer` is null for a model whose tokens are known only by id. An id
// without a token, such as 7, is written as [PAD7]. Throws FormatError if llama.cpp cannot reproduce the ids
// of the tokenizer; the message begins with `where`. Adds a note if llama.cpp reproduces them only for some
// inputs. Also adds general.name, which determines how llama.cpp treats spaces after some tokens.
void add_gguf_tokenizer(const text::HfTokenizer* tokenizer, const HfConfig& config,
                        const std::string& template_text, const std::string& where, GgufStart& to,
                        std::vector<std::string>& notes);

// Returns null if the file has no tokenizer. Throws FormatError for an unknown kind of tokenizer and for
// inconsistent lists. The message contains the file, the key and its value.
std::shared_ptr<const text::HfTokenizer> read_gguf_tokenizer(const Gguf& file);

// ---- llama.cpp's names for the rules that split text into words

struct GgufPreTokenizer {
  const char* name;
  std::vector<text::SplitStep> splits;
  bool nfc = false, ignores_merges = false;
  // Whether llama.cpp keeps digits together while tilegrad's rule splits them. Ids are equal if no merge
  // joins two digits.
  bool keeps_digits = false;
  bool is_only_read = false;  // llama.cpp splits some strings differently, so it is never written
};

// Returns null for an unknown name.
const GgufPreTokenizer* gguf_pre_tokenizer(const std::string& name);
std::string known_gguf_pre_tokenizers();
// Returns the rule set that splits text like a byte-level tokenizer. Throws FormatError, with a message that
// begins with `where`, if there is none.
const GgufPreTokenizer& gguf_pre_tokenizer_of(const text::HfTokenizer& tokenizer, const std::string& where);

}  // namespace tg::io
