#include "io/models/gguf_metadata.h"

#include <algorithm>

#include <tilegrad/core/base/error.h>
#include "core/base/messages.h"

namespace tg::io {

namespace {

using text::SplitStep;
using text::WordRule;

// Letters with case, as listed in DeepSeek's first models.
constexpr const char* cased_words =
    "\\s?["
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
    "\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"
    "\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
    "]+";
constexpr const char* ideographs = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+";
constexpr const char* marks = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+";

SplitStep words(WordRule rule) {
  return {SplitStep::Kind::words, rule};
}
SplitStep runs(const char* pattern) {
  return {SplitStep::Kind::runs, {}, text::CharRuns::parse(pattern).value()};
}

// If several names have the same rules, files are written with the first name.
const std::vector<GgufPreTokenizer>& pre_tokenizers() {
  static const auto& all = *new std::vector<GgufPreTokenizer>{
      {"gpt-2", {words(WordRule::gpt2)}},
      {"phi-2", {words(WordRule::gpt2)}},
      {"llama-bpe", {words(WordRule::llama3)}, false, true},
      {"llama3", {words(WordRule::llama3)}, false, true},
      {"llama-v3", {words(WordRule::llama3)}, false, true},
      {"dbrx", {words(WordRule::llama3)}},
      {"smaug-bpe", {words(WordRule::llama3)}},
      {"qwen2", {words(WordRule::qwen2)}, true},
      {"deepseek-r1-qwen", {words(WordRule::qwen2)}, true},
      {"qwen35", {words(WordRule::qwen35)}, true},
      // llama.cpp's expressions for these names distinguish cases only in ASCII. Files with these names are
      // therefore read but never written.
      {"gpt-4o", {words(WordRule::gpt4o)}, false, false, false, true},
      {"llama4", {words(WordRule::gpt4o)}, false, false, false, true},
      {"tekken", {words(WordRule::tekken)}, false, true, false, true},
      {"smollm", {words(WordRule::each_digit), words(WordRule::gpt2)}},
      {"starcoder", {words(WordRule::each_digit), words(WordRule::gpt2)}},
      {"deepseek-llm",  // also DeepSeek-V2
       {runs("[\r\n]"), runs(cased_words), runs(marks), runs("\\s+$"), runs(ideographs),
        words(WordRule::each_digit)},
       false,
       false,
       true},
      {"deepseek-coder",
       {runs("[\r\n]"), runs("\\s?\\p{L}+"), runs("\\s?\\p{P}+"), runs(ideographs),
        words(WordRule::each_digit)}},
      {"deepseek-v3",
       {words(WordRule::deepseek_digits), words(WordRule::deepseek_ideographs),
        words(WordRule::deepseek_words)}},
  };
  return all;
}

bool is_same_split(const SplitStep& a, const SplitStep& b) {
  if (a.kind != b.kind) return false;
  if (a.kind == SplitStep::Kind::words) return a.rule == b.rule;
  return a.kind == SplitStep::Kind::runs && a.runs->matches_as(*b.runs);
}

bool joins_digits(const text::HfTokenizer& tokenizer) {
  return std::ranges::any_of(tokenizer.merges(), [](const auto& merge) {
    return std::ranges::count_if(merge.first + merge.second, [](char c) { return c >= '0' && c <= '9'; }) > 1;
  });
}

}  // namespace

const GgufPreTokenizer* gguf_pre_tokenizer(const std::string& name) {
  const auto found = std::ranges::find_if(pre_tokenizers(), [&](const auto& p) { return name == p.name; });
  return found == pre_tokenizers().end() ? nullptr : &*found;
}

std::string known_gguf_pre_tokenizers() {
  return list_text(pre_tokenizers(), ", ", &GgufPreTokenizer::name);
}

const GgufPreTokenizer& gguf_pre_tokenizer_of(const text::HfTokenizer& tokenizer, const std::string& where) {
  const text::HfStages& stages = tokenizer.stages();
  const bool nfc = !stages.normalizer.empty();
  const bool is_other = std::ranges::any_of(stages.normalizer, [](const text::NormalizeStep& step) {
    return step.kind != text::NormalizeStep::Kind::nfc;
  });
  // llama.cpp does not normalize, so ids differ for strings that are not in NFC.
  for (const GgufPreTokenizer& p : pre_tokenizers())
    if (!is_other && !p.is_only_read && std::ranges::equal(p.splits, stages.pre_tokenizer, is_same_split) &&
        p.ignores_merges == tokenizer.ignores_merges() && (p.nfc || !nfc) &&
        !(p.keeps_digits && joins_digits(tokenizer)))
      return p;
  throw FormatError(where + ": llama.cpp has no name for the rules by which this tokenizer splits text");
}

}  // namespace tg::io
