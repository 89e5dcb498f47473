// The stages of a tokenizer.json around its model, as steps that are executed in order, and the regular
// expressions that they know.
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
  std::string from = {}, to = {};  // replace: each `from` by `to`; prepend: `to`, unless the text is empty
};

struct SplitStep {
  enum class Kind {
    words,         // divides by a rule
    runs,          // divides by a set of characters
    prefix_space,  // puts a space before what does not begin with one
    meta_space,  // replaces spaces by ▁ and puts one before, as `prefix` says, what does not begin with one
  } kind;
  WordRule rule = WordRule::gpt2;
  std::optional<CharRuns> runs = {};
  std::vector<std::string> kept = {};  // characters after which WordRule::spaces does not divide
  enum class Prefix { always, first, never } prefix = Prefix::never;  // first: only where the text begins

  // Of the steps that divide: where the piece of the text that begins at i ends.
  std::size_t end(std::string_view text, std::size_t i) const;
};

struct HfStages {
  std::vector<NormalizeStep> normalizer;
  std::vector<SplitStep> pre_tokenizer;
  bool byte_level = false;  // the model's tokens are bytes
  // The tokens around a text, by what a TemplateProcessing says of them.
  std::vector<std::int32_t> before, after;
  // The decoder is that of byte-level models, or replaces ▁ by a space and, if it has that step, <0xNN> by a
  // byte. Then it may remove a space at the start of the text.
  bool decodes_bytes = false, strips_first_space = false;
};

// From the values of a tokenizer.json, each perhaps null. Throws FormatError, naming stage and value, for a
// type or an option that is not understood.
HfStages read_hf_stages(const io::JsonTree& normalizer, const io::JsonTree& pre_tokenizer,
                        const io::JsonTree& post_processor, const io::JsonTree& decoder);

std::string normalize(const std::vector<NormalizeStep>& steps, std::string_view text);

// ---- The regular expressions of tokenizer.json files that have a scanner: no other one is understood.

// The rule whose words are the matches of the pattern, each isolated, and what is between them.
std::optional<WordRule> rule_of_pattern(std::string_view pattern);
// Whether every character of any text is in a match of the rule's pattern, so that nothing is between two.
bool matches_all_text(WordRule rule);
// The pattern of a rule that has one; else "".
std::string_view pattern_of_rule(WordRule rule);

}  // namespace tg::text
