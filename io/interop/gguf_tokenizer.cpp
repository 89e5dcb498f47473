#include "io/interop/gguf_tokenizer.h"

#include <algorithm>
#include <span>
#include <unordered_map>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include "io/files/utf8.h"
#include "io/interop/gguf_pre_tokenizers.h"
#include "io/text/hf_stages.h"
#include "io/text/word_patterns.h"

namespace tg::io {

namespace {

using text::HfTokenizer;
using text::NormalizeStep;
using text::SplitStep;
using text::WordRule;

constexpr std::string_view space_mark = "\xe2\x96\x81";  // ▁

enum TokenType : std::int32_t { normal = 1, unknown, control, user_defined, unused, byte };

std::string id_key(const char* name) {
  return "tokenizer.ggml." + std::string(name) + "_token_id";
}

std::string replaced(std::string s, std::string_view from, std::string_view to) {
  for (std::size_t at = s.find(from); at != std::string::npos; at = s.find(from, at + to.size()))
    s.replace(at, from.size(), to);
  return s;
}

// ---- Writing

// Whether ▁ is put before a text; llama.cpp puts it after special tokens too.
bool has_space_before(const HfTokenizer& tokenizer, const std::string& where) {
  const text::HfStages& stages = tokenizer.stages();
  bool before = false;
  for (const NormalizeStep& step : stages.normalizer) {
    if (step.kind == NormalizeStep::Kind::prepend && step.to == space_mark)
      before = true;
    else if (step.kind != NormalizeStep::Kind::replace || step.from != " " || step.to != space_mark)
      throw FormatError(where + ": llama.cpp cannot normalize texts as this tokenizer does");
  }
  for (const SplitStep& step : stages.pre_tokenizer) {
    if (step.kind == SplitStep::Kind::meta_space)
      before |= step.prefix != SplitStep::Prefix::never;
    else if (step.kind != SplitStep::Kind::words ||
             (step.rule != WordRule::spaces && step.rule != WordRule::each_space))
      throw FormatError(where + ": llama.cpp cannot split texts as this tokenizer does");
  }
  return before;
}

std::int32_t type_of_token(const HfTokenizer& tokenizer, std::int32_t id, const std::string& text,
                           const std::optional<std::string>& unknown_text) {
  if (unknown_text && text == *unknown_text) return TokenType::unknown;
  if (tokenizer.is_special(id)) return TokenType::control;
  if (tokenizer.is_added(id)) return TokenType::user_defined;
  return !tokenizer.is_byte_level() && text.size() == 6 && text.starts_with("<0x") ? TokenType::byte
                                                                                   : TokenType::normal;
}

std::uint32_t as_id(std::int64_t id) {
  return static_cast<std::uint32_t>(id);
}

// A file has keys for three tokens that end a text.
void add_ends(const std::vector<std::int64_t>& ends, GgufStart& to) {
  constexpr const char* names[] = {"eos", "eot", "eom"};
  for (std::size_t i = 0; i < std::min(ends.size(), std::size(names)); ++i)
    to.add(id_key(names[i]), as_id(ends[i]));
}

// bos, eos and the others, by the tokenizer's rule for whole texts, else by the model.
void add_ids(const HfTokenizer& tokenizer, const HfConfig& config, const std::string& where, GgufStart& to) {
  if (tokenizer.before().size() > 1 || tokenizer.after().size() > 1)
    throw FormatError(where + ": llama.cpp begins and ends a text with one token, this tokenizer with more");
  std::optional<std::int64_t> bos = config.start_token;
  std::vector<std::int64_t> ends = config.end_tokens;
  if (!tokenizer.before().empty()) bos = tokenizer.before()[0];
  if (!tokenizer.after().empty()) {  // it is the one that is appended
    std::erase(ends, tokenizer.after()[0]);
    ends.insert(ends.begin(), tokenizer.after()[0]);
  }
  if (bos) to.add(id_key("bos"), as_id(*bos));
  add_ends(ends, to);
  if (config.padding_token) to.add(id_key("padding"), as_id(*config.padding_token));
  to.add("tokenizer.ggml.add_bos_token", !tokenizer.before().empty());
  to.add("tokenizer.ggml.add_eos_token", !tokenizer.after().empty());
}

// −r of the merge with rank r that makes the token; of tokens that none makes less than all others.
std::vector<float> scores_of(const HfTokenizer& tokenizer, std::size_t tokens) {
  std::unordered_map<std::string, std::size_t> ranks;
  for (std::size_t r = 0; r < tokenizer.merges().size(); ++r)
    ranks.try_emplace(tokenizer.merges()[r].first + tokenizer.merges()[r].second, r);
  std::vector<float> scores;
  for (std::size_t id = 0; id < tokens; ++id) {
    const auto rank = static_cast<std::int64_t>(id) < tokenizer.size()
                          ? ranks.find(tokenizer.token_text(static_cast<std::int32_t>(id)))
                          : ranks.end();
    scores.push_back(rank == ranks.end() ? -1e9f : -static_cast<float>(rank->second));
  }
  return scores;
}

// ---- Reading

struct Vocabulary {
  std::vector<std::string_view> tokens;  // in the file
  std::vector<std::int64_t> types;
};

void check_count(const Gguf& file, const char* key, std::size_t tokens) {
  if (file.count(key) != tokens) file.refuse(key, "one for each of " + std::to_string(tokens) + " tokens");
}

std::int64_t id_of(const Gguf& file, const char* name, std::size_t tokens) {
  const std::int64_t id = file.integer(id_key(name));
  if (id < 0 || static_cast<std::size_t>(id) >= tokens)
    file.refuse(id_key(name), "an id below " + std::to_string(tokens));
  return id;
}

std::string vocabulary_json(const Vocabulary& v) {
  std::string text;
  for (std::size_t id = 0; id < v.tokens.size(); ++id)
    if (v.types[id] != TokenType::unused)
      text += (text.empty() ? "" : ", ") + json_string(v.tokens[id]) + ": " + std::to_string(id);
  return text;
}

std::string added_json(const Vocabulary& v) {
  std::string text;
  for (std::size_t id = 0; id < v.tokens.size(); ++id) {
    const bool is_special = v.types[id] == TokenType::control || v.types[id] == TokenType::unknown;
    if (!is_special && v.types[id] != TokenType::user_defined) continue;
    text += std::string(text.empty() ? "" : ",\n    ") + "{\"id\": " + std::to_string(id) +
            ", \"content\": " + json_string(v.tokens[id]) +
            R"(, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": )" +
            (is_special ? "true}" : "false}");
  }
  return text;
}

std::string merge_json(std::string_view left, std::string_view right) {
  return "[" + json_string(left) + ", " + json_string(right) + "]";
}

std::string merges_json(const Gguf& file) {
  const char* key = "tokenizer.ggml.merges";
  std::string text;
  file.each_string(key, [&](std::string_view merge) {
    const std::size_t space = merge.find(' ', 1);
    if (space == std::string::npos || utf8_valid_bytes(merge) != merge.size())
      throw FormatError(file.where() + ": " + key + " has " + json_excerpt(merge) +
                        ", expected two texts with a space between them");
    text += (text.empty() ? "" : ", ") + merge_json(merge.substr(0, space), merge.substr(space + 1));
  });
  return text;
}

// A vocabulary with scores has no merges: two tokens are joined if that makes a token, best scores first.
std::string merges_by_score(const Gguf& file, const Vocabulary& v) {
  const char* key = "tokenizer.ggml.scores";
  check_count(file, key, v.tokens.size());
  std::vector<double> scores;
  scores.reserve(v.tokens.size());
  file.each_number(key, [&](double x) { scores.push_back(x); });
  std::unordered_map<std::string_view, std::size_t> ids;
  for (std::size_t id = 0; id < v.tokens.size(); ++id)
    if (v.types[id] != TokenType::unused && v.types[id] != TokenType::byte) ids.emplace(v.tokens[id], id);
  std::vector<std::size_t> order;
  for (std::size_t id = 0; id < v.tokens.size(); ++id)
    if (v.types[id] == TokenType::normal) order.push_back(id);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  std::string text;
  for (const std::size_t id : order) {
    const std::string_view token = v.tokens[id];
    std::size_t i = 0;
    while (i < token.size()) {
      utf8_next(token, i);
      if (i == token.size() || !ids.contains(token.substr(0, i)) || !ids.contains(token.substr(i))) continue;
      text += (text.empty() ? "" : ", ") + merge_json(token.substr(0, i), token.substr(i));
    }
  }
  return text;
}

std::string template_json(const Gguf& file, const Vocabulary& v, bool bos, bool eos) {
  if (!bos && !eos) return "null";
  std::string pieces, ids;
  const auto add = [&](const char* name) {
    const std::int64_t id = id_of(file, name, v.tokens.size());
    const std::string token = json_string(v.tokens[static_cast<std::size_t>(id)]);
    pieces += (pieces.empty() ? "" : ", ") + (R"({"SpecialToken": {"id": )" + token + R"(, "type_id": 0}})");
    if (ids.find(token + ":") == std::string::npos)
      ids += (ids.empty() ? "" : ", ") + (token + R"(: {"id": )" + token + ", \"ids\": [" +
                                          std::to_string(id) + "], \"tokens\": [" + token + "]}");
  };
  if (bos) add("bos");
  pieces += std::string(pieces.empty() ? "" : ", ") + R"({"Sequence": {"id": "A", "type_id": 0}})";
  if (eos) add("eos");
  return R"({"type": "TemplateProcessing", "single": [)" + pieces +
         R"(], "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {)" +
         ids + "}}";
}

std::string step_json(const SplitStep& step) {
  if (step.kind == SplitStep::Kind::words && step.rule == WordRule::each_digit)
    return R"({"type": "Digits", "individual_digits": true})";
  const std::string pattern = step.kind == SplitStep::Kind::runs
                                  ? step.runs->pattern()
                                  : std::string(text::pattern_of_rule(step.rule));
  return R"({"type": "Split", "pattern": {"Regex": )" + json_string(pattern) +
         R"(}, "behavior": "Isolated", "invert": false})";
}

// GPT-2's rule is a part of ByteLevel.
std::string split_json(std::span<const SplitStep> splits) {
  const bool by_gpt2 = splits.back().kind == SplitStep::Kind::words && splits.back().rule == WordRule::gpt2;
  const std::string bytes =
      R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": )" +
      std::string(by_gpt2 ? "true}" : "false}");
  if (by_gpt2) splits = splits.first(splits.size() - 1);
  if (splits.empty()) return bytes;
  std::string steps;
  for (const SplitStep& step : splits) steps += step_json(step) + ", ";
  return R"({"type": "Sequence", "pretokenizers": [)" + steps + bytes + "]}";
}

struct TokenizerText {
  std::string added, normalizer = "null", pre_tokenizer = "null", post_processor = "null", decoder,
                     unknown = "null";
  bool byte_fallback = false, fuse_unknown = false, ignore_merges = false;
  std::string vocabulary, merges;

  std::string json() const {
    const auto flag = [](bool x) { return std::string(x ? "true" : "false"); };
    return "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [" + added +
           "], \"normalizer\": " + normalizer + ", \"pre_tokenizer\": " + pre_tokenizer +
           ", \"post_processor\": " + post_processor + ", \"decoder\": " + decoder +
           ", \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": " + unknown +
           ", \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": " +
           flag(fuse_unknown) + ", \"byte_fallback\": " + flag(byte_fallback) +
           ", \"ignore_merges\": " + flag(ignore_merges) + ", \"vocab\": {" + vocabulary +
           "}, \"merges\": [" + merges + "]}}";
  }
};

Vocabulary read_vocabulary(const Gguf& file) {
  const char *list = "tokenizer.ggml.tokens", *kinds = "tokenizer.ggml.token_type";
  Vocabulary v;
  file.each_string(list, [&](std::string_view token) {
    if (token.empty() || utf8_valid_bytes(token) != token.size())
      throw FormatError(file.where() + ": " + list + " has a token " + std::to_string(v.tokens.size()) +
                        (token.empty() ? " that is empty" : " that is not UTF-8"));
    v.tokens.push_back(token);
  });
  if (file.has(kinds)) {
    check_count(file, kinds, v.tokens.size());
    v.types.reserve(v.tokens.size());
    file.each_integer(kinds, [&](std::int64_t type) { v.types.push_back(type); });
  } else {
    v.types.assign(v.tokens.size(), TokenType::normal);
  }
  for (std::size_t id = 0; id < v.types.size(); ++id)
    if (v.types[id] < TokenType::normal || v.types[id] > TokenType::byte)
      throw FormatError(file.where() + ": " + kinds + " has " + std::to_string(v.types[id]) + " of token " +
                        std::to_string(id) + ", expected 1 to 6");
  return v;
}

}  // namespace

void add_gguf_tokenizer(const HfTokenizer* tokenizer, const HfConfig& config,
                        const std::string& template_text, const std::string& where, GgufStart& to) {
  if (tokenizer == nullptr) {
    to.add("tokenizer.ggml.model", "none");
    if (config.start_token) to.add(id_key("bos"), as_id(*config.start_token));
    add_ends(config.end_tokens, to);
    return;
  }
  const bool is_byte_level = tokenizer->is_byte_level();
  to.add("tokenizer.ggml.model", is_byte_level ? "gpt2" : "llama");
  to.add("tokenizer.ggml.pre", is_byte_level ? gguf_pre_tokenizer_of(*tokenizer, where).name : "default");
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  std::optional<std::int32_t> unknown_id;
  const std::optional<std::string> unknown_text = tokenizer->unknown_token();
  for (std::int32_t id = 0; id < config.model.vocabulary; ++id) {
    std::string text = id < tokenizer->size() ? tokenizer->token_text(id) : "";
    if (text.empty()) {
      tokens.push_back("[PAD" + std::to_string(id) + "]"), types.push_back(TokenType::unused);
      continue;
    }
    types.push_back(type_of_token(*tokenizer, id, text, unknown_text));
    if (types.back() == TokenType::unknown) unknown_id = id;
    if (types.back() == TokenType::user_defined) text = replaced(text, space_mark, " ");
    // llama.cpp has no other texts of spaces in such vocabularies.
    if (!is_byte_level && types.back() == TokenType::normal) text = replaced(text, " ", space_mark);
    tokens.push_back(std::move(text));
  }
  to.add("tokenizer.ggml.tokens", tokens), to.add("tokenizer.ggml.token_type", types);
  if (is_byte_level) {
    std::vector<std::string> merges;
    for (const auto& [left, right] : tokenizer->merges()) merges.push_back(left + " " + right);
    to.add("tokenizer.ggml.merges", merges);
  } else {
    to.add("tokenizer.ggml.scores", scores_of(*tokenizer, tokens.size()));
    to.add("tokenizer.ggml.add_space_prefix", has_space_before(*tokenizer, where));
  }
  add_ids(*tokenizer, config, where, to);
  if (unknown_id) to.add(id_key("unknown"), as_id(*unknown_id));
  if (!template_text.empty()) to.add("tokenizer.chat_template", template_text);
}

std::shared_ptr<const HfTokenizer> read_gguf_tokenizer(const Gguf& file) {
  const std::string kind = file.string("tokenizer.ggml.model", "none");
  if (kind == "none" || kind == "no_vocab") return nullptr;
  if (kind != "gpt2" && kind != "llama") file.refuse("tokenizer.ggml.model", "gpt2, llama or none");
  const Vocabulary v = read_vocabulary(file);
  TokenizerText made{.added = added_json(v), .decoder = {}, .vocabulary = vocabulary_json(v), .merges = {}};
  bool bos_usual = kind == "llama";
  if (kind == "gpt2") {
    const std::string name = file.string("tokenizer.ggml.pre", "default");
    const GgufPreTokenizer* pre = gguf_pre_tokenizer(name);
    if (pre == nullptr) file.refuse("tokenizer.ggml.pre", known_gguf_pre_tokenizers());
    made.pre_tokenizer = split_json(pre->splits);
    if (pre->nfc) made.normalizer = R"({"type": "NFC"})";
    made.ignore_merges = pre->ignores_merges, bos_usual = pre->ignores_merges;
    made.decoder =
        R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})";
    made.merges = merges_json(file);
  } else {
    const bool prefix = file.boolean("tokenizer.ggml.add_space_prefix", true);
    const std::string replace = R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})";
    made.normalizer =
        prefix
            ? R"({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, )" + replace + "]}"
            : replace;
    made.byte_fallback = std::find(v.types.begin(), v.types.end(), TokenType::byte) != v.types.end();
    made.decoder =
        R"({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "})" +
        std::string(made.byte_fallback ? R"(, {"type": "ByteFallback"})" : "") + R"(, {"type": "Fuse"})" +
        (prefix ? R"(, {"type": "Strip", "content": " ", "start": 1, "stop": 0})" : "") + "]}";
    if (file.has(id_key("unknown"))) {
      const auto id = static_cast<std::size_t>(id_of(file, "unknown", v.tokens.size()));
      made.unknown = json_string(v.tokens[id]), made.fuse_unknown = true;
    }
    made.merges = merges_by_score(file, v);
  }
  const bool bos = file.boolean("tokenizer.ggml.add_bos_token", bos_usual && file.has(id_key("bos")));
  made.post_processor = template_json(file, v, bos, file.boolean("tokenizer.ggml.add_eos_token", false));
  return std::make_shared<HfTokenizer>(made.json(), file.where() + ": tokenizer.ggml");
}

}  // namespace tg::io
