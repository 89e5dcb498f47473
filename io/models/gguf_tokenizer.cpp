#include "io/models/gguf_metadata.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <set>
#include <span>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include "io/files/gguf_record.h"
#include "io/files/utf8.h"
#include "io/text/added_tokens.h"
#include "io/text/hf_stages.h"

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

[[noreturn]] void refuse_tokenizer(const std::string& where, const std::string& what) {
  throw FormatError(where + ": llama.cpp cannot encode as this tokenizer does: " + what);
}

// Whether the tokenizer prepends ▁ to its input. llama.cpp also inserts ▁ after every special token.
bool has_space_before(const HfTokenizer& tokenizer, const std::string& where) {
  const text::HfStages& stages = tokenizer.stages();
  bool before = false;
  for (const NormalizeStep& step : stages.normalizer) {
    if (step.kind == NormalizeStep::Kind::prepend && step.to == space_mark && !before)
      before = true;
    else if (step.kind != NormalizeStep::Kind::replace || step.from != " " || step.to != space_mark)
      refuse_tokenizer(where, "its normalizer is more than Prepend ▁ and Replace of spaces by ▁");
  }
  for (const SplitStep& step : stages.pre_tokenizer) {
    if (step.kind == SplitStep::Kind::meta_space) {
      if (step.prefix != SplitStep::Prefix::never)
        refuse_tokenizer(where, std::string("its pre_tokenizer is Metaspace with prepend_scheme ") +
                                    (step.prefix == SplitStep::Prefix::first ? "first" : "always"));
    } else if (step.kind != SplitStep::Kind::words ||
               (step.rule != WordRule::spaces && step.rule != WordRule::each_space)) {
      refuse_tokenizer(where, "its pre_tokenizer is more than Metaspace");
    }
  }
  return before;
}

// Checks a vocabulary that is not byte-level. llama.cpp ignores the merges: it joins two pieces if the joined
// string is a token. It first joins the pair whose token has the best score. If scores are equal, it joins
// the leftmost pair first.
class Pieces {
 public:
  Pieces(const HfTokenizer& tokenizer, const std::string& where) : tokenizer_(tokenizer), where_(where) {
    // Excludes added tokens, because they are matched earlier. Includes the tokens that check_space_marks()
    // leaves to merges.
    for (std::int32_t id = 0; id < tokenizer.size(); ++id) {
      std::string text = tokenizer.token_text(id);
      const bool is_cut =
          tokenizer.is_added(id) && (tokenizer.is_special(id) || text.find(space_mark) == std::string::npos);
      if (!text.empty() && !is_cut) texts_.insert(std::move(text));
    }
  }

  void check() const {
    check_bytes();
    check_merges();
    const auto& steps = tokenizer_.stages().pre_tokenizer;
    const bool splits = std::ranges::any_of(steps, [](const SplitStep& s) {
      return s.kind == SplitStep::Kind::words && s.rule == WordRule::each_space;
    });
    if (!splits) return;
    for (const std::string& text : texts_)
      if (text.find(space_mark, 1) != std::string::npos)
        refuse_tokenizer(where_, "its pre_tokenizer splits text before each ▁, and token " +
                                     gguf_shown(text) + " has one inside");
  }

 private:
  // A character without a token is encoded as its bytes, so all byte tokens must exist.
  void check_bytes() const {
    if (tokenizer_.ignores_merges()) refuse_tokenizer(where_, "model.ignore_merges is true");
    if (!tokenizer_.has_byte_fallback() && tokenizer_.unknown_token())
      refuse_tokenizer(
          where_, "model.unk_token is " + gguf_shown(*tokenizer_.unknown_token()) + " without byte_fallback");
    constexpr const char* digits = "0123456789ABCDEF";
    for (int b = 0; b < 256 && tokenizer_.has_byte_fallback(); ++b)
      if (const std::string token = std::string("<0x") + digits[b / 16] + digits[b % 16] + ">";
          !texts_.contains(token) && !tokenizer_.find(token))
        refuse_tokenizer(where_, "model.byte_fallback is true, but there is no token " + token);
  }

  void check_merges() const {
    using Span = std::pair<std::size_t, std::size_t>;  // first and last rank of the merges that make a token
    std::unordered_map<std::string, Span> spans;
    std::unordered_map<std::string, std::size_t> ranks;
    const auto& merges = tokenizer_.merges();
    for (std::size_t r = 0; r < merges.size(); ++r) {
      const auto& [left, right] = merges[r];
      ranks[left + '\0' + right] = r;
    }
    for (std::size_t r = 0; r < merges.size(); ++r) {
      const auto& [left, right] = merges[r];
      // If a merge is listed several times, the last one is used.
      if (ranks.at(left + '\0' + right) != r) continue;
      const auto [at, is_new] = spans.try_emplace(left + right, r, r);
      if (!is_new) at->second.second = r;
    }
    std::vector<std::pair<Span, const std::string*>> in_order;
    in_order.reserve(spans.size());
    for (const auto& [text, span] : spans) in_order.emplace_back(span, &text);
    std::ranges::sort(in_order, [](const auto& a, const auto& b) { return a.first.first < b.first.first; });
    for (std::size_t i = 1; i < in_order.size(); ++i)
      if (in_order[i].first.first < in_order[i - 1].first.second)
        refuse_tokenizer(where_, "merges that make " + gguf_shown(*in_order[i].second) +
                                     " are among those of " + gguf_shown(*in_order[i - 1].second));
    for (const std::string& text : texts_) {
      const bool is_byte = text.size() == 6 && text.starts_with("<0x");
      for (std::size_t i = 0; !is_byte && i < text.size();) {
        utf8_next(text, i);
        if (i < text.size() && is_piece(text.substr(0, i)) && is_piece(text.substr(i)) &&
            !ranks.contains(text.substr(0, i) + '\0' + text.substr(i)))
          refuse_tokenizer(where_, "token " + gguf_shown(text) + " is also that of " +
                                       gguf_shown(text.substr(0, i)) + " and " + gguf_shown(text.substr(i)) +
                                       ", which no merge joins");
      }
    }
  }

  // Whether a string can occur as a piece: it is a character or a token.
  bool is_piece(const std::string& text) const {
    std::size_t end = 0;
    utf8_next(text, end);
    return end == text.size() || texts_.contains(text);
  }

  const HfTokenizer& tokenizer_;
  const std::string& where_;
  std::unordered_set<std::string> texts_;  // of the model's tokens
};

// Whether llama.cpp treats a token with this string as special, even if its type is normal.
bool is_special_text(const std::string& text) {
  static const auto& all = *[] {
    std::istringstream list(
        "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> "
        "<|endoftext|> </s> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> "
        "<eos> <turn|> <|tool_response> <｜end▁of▁sentence｜> [e~[ <|fim_prefix|> <fim-prefix> "
        "<fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|> <|fim_suffix|> "
        "<fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|> "
        "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|> "
        "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> "
        "<reponame> <|file_sep|> <|channel|> <|message|> <|start|> <|constrain|>");
    return new std::set<std::string>(std::istream_iterator<std::string>(list), {});
  }();
  return all.contains(text);
}

// llama.cpp's rule for models with "phi3" in their name. White space after a special token belongs to that
// token, except after the three tokens below. llama.cpp needs these three tokens and </s> to apply the rule.
constexpr const char* phi3_name = "phi3";
constexpr const char* unstripped[] = {"<unk>", "<s>", "<|endoftext|>"};

bool is_unstripped(const std::string& text) {
  return std::ranges::find(unstripped, text) != std::end(unstripped);
}

bool strips_as_phi3(const HfTokenizer& tokenizer) {
  const auto& added = tokenizer.added_tokens();
  for (const char* needed : {"</s>", "<unk>", "<s>", "<|endoftext|>"})
    if (std::ranges::none_of(added, [&](const text::AddedToken& t) { return t.content == needed; }))
      return false;
  return std::ranges::all_of(added, [](const text::AddedToken& t) {
    return !t.lstrip && !t.single_word && t.rstrip != is_unstripped(t.content);
  });
}

// Rejects tokens that can overlap in a string. In such a string, this tokenizer matches the first token, but
// llama.cpp matches the longer one.
void check_overlaps(const std::vector<text::AddedToken>& added, const std::string& where) {
  struct Longest {
    std::size_t size = 0, index = 0, other = 0;  // of the two longest tokens with this prefix
  };
  std::unordered_map<std::string_view, Longest> beginnings;
  for (std::size_t i = 0; i < added.size(); ++i) {
    const std::string_view text = added[i].content;
    for (std::size_t n = 1; n < text.size(); ++n) {
      Longest& l = beginnings[text.substr(0, n)];
      if (text.size() > l.size)
        l = {text.size(), i, l.size};
      else
        l.other = std::max(l.other, text.size());
    }
  }
  for (std::size_t i = 0; i < added.size(); ++i) {
    const std::string_view text = added[i].content;
    for (std::size_t n = 1; n < text.size(); ++n) {
      const auto found = beginnings.find(text.substr(text.size() - n));
      if (found == beginnings.end()) continue;
      const Longest& l = found->second;
      if ((l.index == i ? l.other : l.size) >= text.size())
        refuse_tokenizer(where, "another of its added_tokens can begin within " + gguf_shown(text));
    }
  }
}

// Added tokens in which ▁ stands for spaces are written as normal tokens. llama.cpp makes these by merges. If
// the input contains ▁ instead of spaces, ids differ only in these tokens.
void check_space_marks(const HfTokenizer& tokenizer, const std::string& where,
                       std::vector<std::string>& notes) {
  if (tokenizer.is_byte_level() || tokenizer.stages().normalizer.empty()) return;
  std::unordered_set<std::string> made;
  for (const auto& [left, right] : tokenizer.merges()) made.insert(left + right);
  bool is_noted = false;
  for (const text::AddedToken& t : tokenizer.added_tokens()) {
    if (t.special || t.normalized || t.content.find(space_mark) == std::string::npos) continue;
    if (!made.contains(t.content) && t.content != space_mark)
      refuse_tokenizer(where, "added token " + gguf_shown(t.content) +
                                  " has ▁ in it and normalized false, and no merge makes it");
    if (!is_noted) notes.push_back("llama.cpp treats ▁ as a space: ids are the same for text without it");
    is_noted = true;
  }
}

// Throws FormatError if llama.cpp would match added tokens at different positions. Returns the model's name,
// which determines how llama.cpp strips white space.
std::string name_for_added_tokens(const HfTokenizer& tokenizer, const std::string& where,
                                  std::vector<std::string>& notes) {
  const auto& added = tokenizer.added_tokens();
  const bool is_phi3 = std::ranges::any_of(added, &text::AddedToken::rstrip) && strips_as_phi3(tokenizer);
  const bool prepends = std::ranges::any_of(tokenizer.stages().normalizer, [](const NormalizeStep& s) {
    return s.kind == NormalizeStep::Kind::prepend;
  });
  for (const text::AddedToken& t : added) {
    const char* option = t.single_word              ? "single_word"
                         : t.lstrip                 ? "lstrip"
                         : t.rstrip && !is_phi3     ? "rstrip"
                         : t.normalized && prepends ? "normalized"
                                                    : nullptr;
    if (option != nullptr)
      refuse_tokenizer(where, "added token " + gguf_shown(t.content) + " has " + option + " true");
  }
  check_overlaps(added, where);
  check_space_marks(tokenizer, where, notes);
  if (!is_phi3) return "model";
  notes.push_back("llama.cpp removes only ASCII's white space after special tokens");
  return phi3_name;
}

std::int32_t type_of_token(const HfTokenizer& tokenizer, std::int32_t id, const std::string& text,
                           const std::optional<std::string>& unknown_text) {
  // If the unknown token is not an added token, it is not special in a string.
  if (unknown_text && text == *unknown_text && tokenizer.is_added(id)) return TokenType::unknown;
  if (tokenizer.is_special(id)) return TokenType::control;
  if (tokenizer.is_added(id)) return TokenType::user_defined;
  return !tokenizer.is_byte_level() && text.size() == 6 && text.starts_with("<0x") ? TokenType::byte
                                                                                   : TokenType::normal;
}

std::uint32_t as_id(std::int64_t id) {
  return static_cast<std::uint32_t>(id);
}

// A file has keys for three end tokens.
void add_ends(const std::vector<std::int64_t>& ends, GgufStart& to) {
  constexpr const char* names[] = {"eos", "eot", "eom"};
  for (std::size_t i = 0; i < std::min(ends.size(), std::size(names)); ++i)
    to.add(id_key(names[i]), as_id(ends[i]));
}

// Writes bos, eos and other ids. They come from the tokenizer's rule for documents or, if it has none, from
// the model.
void add_ids(const HfTokenizer& tokenizer, const HfConfig& config, const std::string& where, GgufStart& to) {
  if (tokenizer.before().size() > 1 || tokenizer.after().size() > 1)
    throw FormatError(where +
                      ": llama.cpp begins and ends a sequence with one token, this tokenizer with more");
  std::optional<std::int64_t> bos = config.start_token;
  std::vector<std::int64_t> ends = config.end_tokens;
  if (!tokenizer.before().empty()) bos = tokenizer.before()[0];
  if (!tokenizer.after().empty()) {  // the token that is appended
    std::erase(ends, tokenizer.after()[0]);
    ends.insert(ends.begin(), tokenizer.after()[0]);
  }
  if (bos) to.add(id_key("bos"), as_id(*bos));
  add_ends(ends, to);
  if (config.padding_token) to.add(id_key("padding"), as_id(*config.padding_token));
  to.add("tokenizer.ggml.add_bos_token", !tokenizer.before().empty());
  to.add("tokenizer.ggml.add_eos_token", !tokenizer.after().empty());
}

// Returns the scores of all tokens. If the merge of rank r makes a token, its score is −r. Tokens that no
// merge makes have lower scores.
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
  std::vector<std::string_view> tokens;  // as in the file
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

// Whether llama.cpp would apply the rule of phi3_name for this name.
bool is_phi3_name(std::string name) {
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name.find("phi3") != std::string::npos || name.find("phi-3") != std::string::npos;
}

std::string added_json(const Vocabulary& v, bool is_phi3) {
  std::string text;
  for (std::size_t id = 0; id < v.tokens.size(); ++id) {
    const bool is_special = v.types[id] == TokenType::control || v.types[id] == TokenType::unknown;
    if (!is_special && v.types[id] != TokenType::user_defined) continue;
    text += std::string(text.empty() ? "" : ",\n    ") + "{\"id\": " + std::to_string(id) +
            ", \"content\": " + json_string(v.tokens[id]) +
            R"(, "single_word": false, "lstrip": false, "rstrip": )" +
            (is_phi3 && !is_unstripped(std::string(v.tokens[id])) ? "true" : "false") +
            R"(, "normalized": false, "special": )" + (is_special ? "true}" : "false}");
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
                        ", expected two strings with a space between them");
    text += (text.empty() ? "" : ", ") + merge_json(merge.substr(0, space), merge.substr(space + 1));
  });
  return text;
}

// Derives the merges for a vocabulary that has scores instead of merges. Two tokens are joined if the joined
// string is a token. Merges are sorted by the score of that token, best first.
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
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
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

// Returns the pre-tokenizer. A single GPT-2 rule needs no Split, because ByteLevel contains that rule.
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

// Returns the string by which llama.cpp finds a token.
std::string gguf_text(const HfTokenizer& tokenizer, std::int32_t id, std::int32_t& type, std::string text) {
  const bool replaces = !tokenizer.stages().normalizer.empty() && !tokenizer.is_byte_level();
  if (type == TokenType::user_defined && replaces && text.find(space_mark) != std::string::npos) {
    const auto& added = tokenizer.added_tokens();
    const auto found = std::ranges::find(added, id, &text::AddedToken::id);
    // llama.cpp reads ▁ as a space. If the token is matched before ▁ is replaced, llama.cpp makes it by
    // merges instead.
    if (found->normalized) return replaced(text, space_mark, " ");
    type = TokenType::normal;
  }
  // In vocabularies that are not byte-level, llama.cpp writes all other spaces as ▁.
  if (!tokenizer.is_byte_level() && type == TokenType::normal) text = replaced(text, " ", space_mark);
  return text;
}

}  // namespace

void add_gguf_tokenizer(const HfTokenizer* tokenizer, const HfConfig& config,
                        const std::string& template_text, const std::string& where, GgufStart& to,
                        std::vector<std::string>& notes) {
  // The name of the folder cannot be used here, because llama.cpp derives rules from general.name.
  to.add("general.name", tokenizer == nullptr ? "model" : name_for_added_tokens(*tokenizer, where, notes));
  if (tokenizer == nullptr) {
    to.add("tokenizer.ggml.model", "none");
    if (config.start_token) to.add(id_key("bos"), as_id(*config.start_token));
    add_ends(config.end_tokens, to);
    return;
  }
  const bool is_byte_level = tokenizer->is_byte_level();
  to.add("tokenizer.ggml.model", is_byte_level ? "gpt2" : "llama");
  to.add("tokenizer.ggml.pre", is_byte_level ? gguf_pre_tokenizer_of(*tokenizer, where).name : "default");
  if (is_byte_level && !tokenizer->stages().normalizer.empty())
    notes.push_back("llama.cpp does not normalize text: ids are the same for text in NFC");
  const bool has_prefix = !is_byte_level && has_space_before(*tokenizer, where);
  if (!is_byte_level) Pieces(*tokenizer, where).check();
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  std::unordered_set<std::string> texts;
  const std::optional<std::string> unknown_text = tokenizer->unknown_token();
  for (std::int32_t id = 0; id < config.model.vocabulary; ++id) {
    std::string text = id < tokenizer->size() ? tokenizer->token_text(id) : "";
    if (text.empty()) {
      tokens.push_back("[PAD" + std::to_string(id) + "]"), types.push_back(TokenType::unused);
    } else {
      types.push_back(type_of_token(*tokenizer, id, text, unknown_text));
      if (!tokenizer->is_added(id) && is_special_text(text))
        refuse_tokenizer(where, "token " + gguf_shown(text) + " is not in added_tokens");
      tokens.push_back(gguf_text(*tokenizer, id, types.back(), std::move(text)));
    }
    if (!texts.insert(tokens.back()).second)
      refuse_tokenizer(where, "two of its tokens are " + gguf_shown(tokens.back()));
  }
  to.add("tokenizer.ggml.tokens", tokens), to.add("tokenizer.ggml.token_type", types);
  if (is_byte_level) {
    std::vector<std::string> merges;
    for (const auto& [left, right] : tokenizer->merges()) merges.push_back(left + " " + right);
    to.add("tokenizer.ggml.merges", merges);
  } else {
    to.add("tokenizer.ggml.scores", scores_of(*tokenizer, tokens.size()));
    to.add("tokenizer.ggml.add_space_prefix", has_prefix);
  }
  add_ids(*tokenizer, config, where, to);
  if (unknown_text)
    if (const auto id = tokenizer->find(*unknown_text)) to.add(id_key("unknown"), as_id(*id));
  if (!template_text.empty()) to.add("tokenizer.chat_template", template_text);
}

std::shared_ptr<const HfTokenizer> read_gguf_tokenizer(const Gguf& file) {
  const std::string kind = file.string("tokenizer.ggml.model", "none");
  if (kind == "none" || kind == "no_vocab") return nullptr;
  if (kind != "gpt2" && kind != "llama") file.refuse("tokenizer.ggml.model", "gpt2, llama or none");
  for (const char* name : {"remove_extra_whitespaces", "add_sep_token"})
    if (const std::string key = std::string("tokenizer.ggml.") + name; file.boolean(key, false))
      file.refuse(key, "false");
  const Vocabulary v = read_vocabulary(file);
  TokenizerText made{.added = added_json(v, is_phi3_name(file.string("general.name", ""))),
                     .decoder = {},
                     .vocabulary = vocabulary_json(v),
                     .merges = {}};
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
    made.byte_fallback = std::ranges::find(v.types, TokenType::byte) != v.types.end();
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
