// llama.cpp's names for the rules that split a text into words.
#pragma once

#include <string>
#include <vector>

#include <tilegrad/io/text/hf_tokenizer.h>
#include "io/text/hf_stages.h"

namespace tg::io {

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
