// The stages of a tokenizer.json before and after its model, as steps that run in order. Also the regular
// expressions that the stages support.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/io/text/words.h>
#include "io/files/json_tree.h"
#include "io/text/char_runs.h"

namespace tg::text {

struct NormalizeStep {
  enum class Kind { nfc, prepend, replace } kind;
  // replace: replaces each `from` by `to`. prepend: prepends `to` if the text is not empty.
  std::string from = {}, to = {};
};

struct SplitStep {
  enum class Kind {
    words,         // splits by a rule
    runs,          // splits by a set of characters
    prefix_space,  // prepends a space to a piece that does not begin with one
    // Replaces spaces by ▁. If a piece does not begin with ▁, prepends ▁ according to `prefix`.
    meta_space,
  } kind;
  WordRule rule = WordRule::gpt2;
  std::optional<CharRuns> runs = {};
  std::vector<std::string> kept = {};  // characters after which WordRule::spaces does not split
  // Where meta_space prepends ▁. `first`: only at the start of the text.
  enum class Prefix { always, first, never } prefix = Prefix::never;

  // For the steps that split: returns the end of the piece that begins at i.
  std::size_t end(std::string_view text, std::size_t i) const;
};

struct HfStages {
  std::vector<NormalizeStep> normalizer;
  std::vector<SplitStep> pre_tokenizer;
  bool byte_level = false;  // the model's tokens are bytes
  // Tokens before and after a document, as defined by a TemplateProcessing.
  std::vector<std::int32_t> before, after;
  // The decoder is ByteLevel, or it replaces ▁ by a space. If decodes_bytes is set, it also replaces <0xNN>
  // by a byte. If strips_first_space is set, it finally removes a space at the start of the text.
  bool decodes_bytes = false, strips_first_space = false;
};

// Reads the stages from the values of a tokenizer.json, each of which may be null. Throws FormatError, with
// the stage and its value, for an unsupported type or option.
HfStages read_hf_stages(const io::JsonTree& normalizer, const io::JsonTree& pre_tokenizer,
                        const io::JsonTree& post_processor, const io::JsonTree& decoder);

std::string normalize(const std::vector<NormalizeStep>& steps, std::string_view text);

// ---- The supported regular expressions of tokenizer.json files. Each has a scanner

// Returns the rule whose words are the matches of the pattern and the text between the matches.
std::optional<WordRule> rule_of_pattern(std::string_view pattern);
// Whether the rule's pattern matches every character of any input, so that there is no text between matches.
bool matches_all_text(WordRule rule);
// Returns the pattern of a rule, or "" if it has none.
std::string_view pattern_of_rule(WordRule rule);

}  // namespace tg::text
