#include "io/interop/gguf_tokenizer.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include "io/interop/json_object.h"
#include "io/text/hf_parts.h"
#include "io/text/word_patterns.h"

namespace tg::io {

namespace {

using text::SplitStep;
using text::WordRule;

// token_type
enum TokenKind : std::int32_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};

// The rules by which texts are divided into words, under llama.cpp's names for them.
struct Words {
  const char* name;
  std::vector<WordRule> rules;
  bool has_nfc;
  bool ignores_merges;
};
const Words word_rules[] = {
    {"gpt-2", {WordRule::gpt2}, false, false},
    {"llama-bpe", {WordRule::llama3}, false, true},
    {"qwen2", {WordRule::qwen2}, true, false},
    {"deepseek-v3",
     {WordRule::deepseek_digits, WordRule::deepseek_ideographs, WordRule::deepseek_words},
     false,
     false},
    {"smollm", {WordRule::each_digit, WordRule::gpt2}, false, false},
};

const Words* words_of(const text::HfParts& parts) {
  std::vector<WordRule> rules;
  for (const SplitStep& step : parts.stages.pre_tokenizer) {
    if (step.kind != SplitStep::Kind::words) return nullptr;
    rules.push_back(step.rule);
  }
  const bool has_nfc = !parts.stages.normalizer.empty();
  const auto* found = std::find_if(std::begin(word_rules), std::end(word_rules), [&](const Words& w) {
    return w.rules == rules && w.has_nfc == has_nfc &&
           w.ignores_merges == parts.model.options().ignore_merges;
  });
  return found == std::end(word_rules) ? nullptr : found;
}

bool is_byte_token(const std::string& text) {
  return text.size() == 6 && text.starts_with("<0x") && text.ends_with(">");
}

// Spaces become ▁ and one is put before the text; characters without a token become bytes. As of Llama 2.
bool is_sentencepiece(const text::HfParts& parts) {
  if (parts.stages.byte_level || !parts.model.options().byte_fallback) return false;
  const auto is_meta = [](const auto& step) { return step.kind == SplitStep::Kind::meta_space; };
  return std::all_of(parts.stages.pre_tokenizer.begin(), parts.stages.pre_tokenizer.end(), is_meta);
}

// Whether a space is put before a text.
bool has_space_prefix(const text::HfParts& parts) {
  for (const text::NormalizeStep& step : parts.stages.normalizer)
    if (step.kind == text::NormalizeStep::Kind::prepend) return true;
  for (const SplitStep& step : parts.stages.pre_tokenizer)
    if (step.kind == SplitStep::Kind::meta_space && step.prefix != SplitStep::Prefix::never) return true;
  return false;
}

struct Tokens {
  std::vector<std::string> texts;
  std::vector<std::int32_t> kinds;
};

Tokens tokens_of(const text::HfParts& parts, std::int64_t count) {
  Tokens t;
  for (std::int64_t id = 0; id < count; ++id) {
    t.texts.push_back("[PAD" + std::to_string(id) + "]");
    t.kinds.push_back(unused);
  }
  const auto& options = parts.model.options();
  for (const text::HfToken& token : parts.tokens) {
    const auto id = static_cast<std::size_t>(token.id);
    if (token.text.empty()) continue;
    t.texts[id] = token.text;
    t.kinds[id] = token.special                                        ? control
                  : token.added                                        ? user_defined
                  : options.unknown == token.text                      ? unknown
                  : options.byte_fallback && is_byte_token(token.text) ? byte
                                                                       : normal;
  }
  return t;
}

// SentencePiece merges the pair whose text has the best score: that of the first merge is the best.
std::vector<float> scores_of(const text::HfParts& parts, const Tokens& tokens) {
  std::vector<float> scores(tokens.texts.size(), 0);
  std::unordered_map<std::string, std::size_t> ranks;
  const auto& merges = parts.model.merges();
  for (std::size_t rank = 0; rank < merges.size(); ++rank)
    ranks.emplace(merges[rank].first + merges[rank].second, rank);
  for (std::size_t id = 0; id < scores.size(); ++id) {
    if (tokens.kinds[id] != normal) continue;
    const auto rank = ranks.find(tokens.texts[id]);
    // Characters are no merge's result.
    scores[id] =
        rank == ranks.end() ? -static_cast<float>(merges.size() + id) : -static_cast<float>(rank->second);
  }
  return scores;
}

std::string chat_template(const nn::FolderFiles& files) {
  if (const auto own = files.find("chat_template.jinja"); own != files.end()) return own->second;
  if (const auto config = files.find("tokenizer_config.json"); config != files.end()) {
    const JsonObject json(config->second, "tokenizer_config.json");
    try {
      return json.string("chat_template", "");
    } catch (const FormatError&) {  // several templates, by name: none is the one
    }
  }
  return "";
}

}  // namespace

void write_gguf_tokenizer(const text::Tokenizer& tokenizer, const HfConfig& config,
                          const nn::FolderFiles& files, const std::string& where, GgufStart& to) {
  const text::HfParts parts = text::read_hf_parts(text::tokenizer_json(tokenizer), where);
  if (tokenizer.size() > config.model.vocabulary)
    throw FormatError(where + ": the tokenizer has " + std::to_string(tokenizer.size()) +
                      " tokens, the model " + std::to_string(config.model.vocabulary));
  const std::string key = "tokenizer.ggml.";
  const bool pieces = is_sentencepiece(parts);
  const Words* words = pieces ? nullptr : words_of(parts);
  if (!pieces && words == nullptr)
    throw FormatError(
        where +
        ": llama.cpp has no tokenizer that divides texts as this one does: export it without, as a "
        "folder, or train with --tokenizer bpe");
  const Tokens tokens = tokens_of(parts, config.model.vocabulary);
  to.string(key + "model", pieces ? "llama" : "gpt2");
  to.string(key + "pre", pieces ? "default" : words->name);
  to.strings(key + "tokens", tokens.texts);
  if (pieces) to.f32s(key + "scores", scores_of(parts, tokens));
  to.i32s(key + "token_type", tokens.kinds);
  if (!pieces) {
    std::vector<std::string> merges;
    for (const auto& [left, right] : parts.model.merges()) merges.push_back(left + " " + right);
    to.strings(key + "merges", merges);
  }
  // What llama.cpp begins a text with, if it does.
  const auto& before = parts.stages.before;
  if (before.size() > 1)
    throw FormatError(where + ": the tokenizer begins a text with " + std::to_string(before.size()) +
                      " tokens, llama.cpp with one at most");
  const std::optional<std::int64_t> begin = before.empty() ? config.start_token : before[0];
  if (begin) to.u32(key + "bos_token_id", *begin);
  if (!config.end_tokens.empty()) to.u32(key + "eos_token_id", config.end_tokens[0]);
  if (config.padding_token) to.u32(key + "padding_token_id", *config.padding_token);
  if (const auto& name = parts.model.options().unknown; name && parts.model.find(*name))
    to.u32(key + "unknown_token_id", *parts.model.find(*name));
  to.boolean(key + "add_bos_token", !before.empty());
  to.boolean(key + "add_eos_token", !parts.stages.after.empty());
  if (pieces) to.boolean(key + "add_space_prefix", has_space_prefix(parts));
  if (const std::string text = chat_template(files); !text.empty())
    to.string("tokenizer.chat_template", text);
}

}  // namespace tg::io
