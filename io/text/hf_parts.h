// Reads and checks the content of a tokenizer.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tilegrad/io/text/hf_tokenizer.h>
#include "io/text/added_tokens.h"
#include "io/text/bpe_model.h"
#include "io/text/hf_stages.h"

namespace tg::text {

struct HfToken {
  std::int32_t id = 0;
  std::string text = {};   // as in the file
  std::string bytes = {};  // the decoded token
  bool special = false, added = false;
};

struct HfParts {
  std::string json;
  HfStages stages;
  BpeModel model;
  std::vector<HfToken> tokens;  // tokens of the model and added tokens, sorted by id; not empty
  std::vector<AddedToken> added;
  AddedTokenFinder raw_tokens, normalized_tokens;
  bool can_be_cut = false;  // text can be cut at positions defined in io/text/words.h

  const HfToken& token(std::int32_t id) const;  // an empty token if no token has the id
};

struct HfTokenizer::Parts : HfParts {
  explicit Parts(HfParts&& read) : HfParts(std::move(read)) {}
};

// Throws FormatError for invalid or unsupported content. The message begins with `where`.
HfParts read_hf_parts(std::string json, const std::string& where);

}  // namespace tg::text
