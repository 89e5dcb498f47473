// What the keys of a GGUF file mean: the model that its tensors are of, and its tokenizer. Both are written
// and read here.
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

// Adds the keys by which llama.cpp computes what the model does. `notes`: where it does so only for some
// texts. Throws FormatError, beginning with `where` and naming setting and value, for a model that it has
// not.
void add_gguf_config(const HfConfig& config, const std::string& where, GgufStart& to,
                     std::vector<std::string>& notes);

// Small tensors in f32 that are no parameters: divisors of rotary frequencies, by name.
struct GgufFactors {
  std::string tensor;
  std::vector<float> values;
};
std::vector<GgufFactors> gguf_factors(const HfConfig& config);

// The model of a file, as a Hugging Face class would have it. Throws FormatError, naming file, key and value,
// for an architecture that is not known, and for what parse_hf_config() refuses. `tensors` receives those
// that were read and are no parameters.
HfConfig read_gguf_config(const Gguf& file, std::set<std::string>* tensors = nullptr);

// When everything has been read of the model and its tokenizer: throws FormatError, naming key and value, for
// a key that nothing has read and that is not known to be a remark.
void check_gguf_keys(const Gguf& file);

// ---- The tokenizer: keys tokenizer.ggml.* ⇄ a tokenizer.json

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

// ---- llama.cpp's names for the rules that split a text into words

struct GgufPreTokenizer {
  const char* name;
  std::vector<text::SplitStep> splits;
  bool nfc = false, ignores_merges = false;
  // Digits stay together there, and are split here: the same where no merge joins two.
  bool keeps_digits = false;
  bool is_only_read = false;  // llama.cpp splits some texts otherwise
};

// Null for a name that is not known.
const GgufPreTokenizer* gguf_pre_tokenizer(const std::string& name);
std::string known_gguf_pre_tokenizers();
// The one that splits as a byte-level tokenizer does. Throws FormatError, beginning with `where`, if there is
// none.
const GgufPreTokenizer& gguf_pre_tokenizer_of(const text::HfTokenizer& tokenizer, const std::string& where);

}  // namespace tg::io
