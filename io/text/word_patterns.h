// The regular expressions of tokenizer.json files that have a scanner: no other one is understood.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <tilegrad/io/text/words.h>

namespace tg::text {

// The rule whose words are the matches of the pattern, each isolated, and what is between them.
std::optional<WordRule> rule_of_pattern(std::string_view pattern);
// Whether every character of any text is in a match of the rule's pattern, so that nothing is between two.
bool matches_all_text(WordRule rule);
// The pattern of a rule that has one; else "".
std::string_view pattern_of_rule(WordRule rule);

}  // namespace tg::text
