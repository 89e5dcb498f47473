#include "io/text/word_patterns.h"

namespace tg::text {
namespace {

struct PatternRule {
  std::string_view pattern;
  WordRule rule;
};

constexpr PatternRule pattern_rules[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", WordRule::gpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     WordRule::llama3},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     WordRule::qwen2},
    {R"(\p{N}{1,3})", WordRule::deepseek_digits},
    {"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", WordRule::deepseek_ideographs},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
     "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
     WordRule::deepseek_words},
};

}  // namespace

std::optional<WordRule> rule_of_pattern(std::string_view pattern) {
  for (const PatternRule& known : pattern_rules)
    if (known.pattern == pattern) return known.rule;
  return std::nullopt;
}

std::string_view pattern_of_rule(WordRule rule) {
  for (const PatternRule& known : pattern_rules)
    if (known.rule == rule) return known.pattern;
  return {};
}

}  // namespace tg::text
