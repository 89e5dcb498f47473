// Reads a tokenizer.json.
#include "io/text/hf_parts.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include "io/text/bpe_model.h"

namespace tg::text {
namespace {

using io::JsonReader;
using io::JsonTree;

struct ModelJson {
  bool is_there = false;
  std::vector<BpeModel::Entry> vocabulary;
  std::vector<BpeModel::Merge> merges;
  BpeModel::Options options;
};

std::int32_t read_id(JsonReader& json) {
  const std::int64_t id = json.integer();
  if (id < 0 || id >= std::numeric_limits<std::int32_t>::max())
    json.fail("id " + std::to_string(id) + ", expected 0 to 2147483646");
  return static_cast<std::int32_t>(id);
}

// Reads a setting that must be off: null or false.
void read_unset(JsonReader& json, const std::string& key) {
  const JsonTree value = read_json_tree(json);
  const bool is_off = value.is_null() || value.scalar == "0" ||
                      (value.kind == JsonReader::Kind::string && value.scalar.empty());
  if (!is_off) json.fail("model." + key + " is " + value.text() + ", expected null");
}

bool read_flag(JsonReader& json) {
  if (json.peek() != JsonReader::Kind::null) return json.boolean();
  json.null();
  return false;
}

BpeModel::Merge read_merge(JsonReader& json) {
  BpeModel::Merge merge;
  if (json.peek() == JsonReader::Kind::array) {
    json.begin_array();
    for (std::string* half : {&merge.first, &merge.second}) {
      if (!json.next_item()) json.fail("a merge of fewer than two strings");
      *half = json.string();
    }
    if (json.next_item()) json.fail("a merge of more than two strings");
    return merge;
  }
  const std::string text = json.string();
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
    json.fail("merge " + io::json_excerpt(text) + ", expected two strings with a space between them");
  return {text.substr(0, space), text.substr(space + 1)};
}

ModelJson read_model(JsonReader& json) {
  ModelJson model{.is_there = true};
  bool vocabulary = false, merges = false;
  json.begin_object();
  while (const auto key = json.next_key()) {
    if (*key == "type") {  // files of 2020 have no type
      if (const std::string type = json.string(); type != "BPE")
        json.fail("model.type is " + io::json_excerpt(type) + ", expected \"BPE\"");
    } else if (*key == "vocab") {
      vocabulary = true;
      json.begin_object();
      while (auto text = json.next_key()) {
        const std::int32_t id = read_id(json);
        model.vocabulary.emplace_back(std::move(*text), id);
      }
    } else if (*key == "merges") {
      merges = true;
      json.begin_array();
      while (json.next_item()) {
        BpeModel::Merge merge = read_merge(json);
        if (merge.first != "#version:") model.merges.push_back(std::move(merge));
      }
    } else if (*key == "unk_token") {
      if (json.peek() == JsonReader::Kind::null) {
        json.null();
      } else {
        model.options.unknown = json.string();
      }
    } else if (*key == "fuse_unk") {
      model.options.fuse_unknown = read_flag(json);
    } else if (*key == "byte_fallback") {
      model.options.byte_fallback = read_flag(json);
    } else if (*key == "ignore_merges") {
      model.options.ignore_merges = read_flag(json);
    } else if (*key == "dropout" || *key == "continuing_subword_prefix" || *key == "end_of_word_suffix") {
      read_unset(json, *key);
    } else {
      json.fail("model has " + *key + " = " + read_json_tree(json).text() + ", which is not supported");
    }
  }
  if (!vocabulary || !merges) json.fail("the model has no " + std::string(vocabulary ? "merges" : "vocab"));
  return model;
}

AddedToken read_added_token(JsonReader& json) {
  AddedToken token;
  std::unordered_map<std::string, bool*> flags{{"single_word", &token.single_word},
                                               {"lstrip", &token.lstrip},
                                               {"rstrip", &token.rstrip},
                                               {"normalized", &token.normalized},
                                               {"special", &token.special}};
  token.id = -1;
  json.begin_object();
  while (const auto key = json.next_key()) {
    if (*key == "id") {
      token.id = read_id(json);
    } else if (*key == "content") {
      token.content = json.string();
    } else if (const auto flag = flags.find(*key); flag != flags.end()) {
      *flag->second = json.boolean();
      flags.erase(flag);
    } else {
      json.fail("an added token has " + *key + " = " + read_json_tree(json).text() +
                ", which is not supported");
    }
  }
  if (token.id < 0 || token.content.empty()) json.fail("an added token without id or content");
  if (!flags.empty())
    json.fail("added token " + io::json_excerpt(token.content) + " has no " + flags.begin()->first);
  return token;
}

// If the vocabulary contains the string of an added token, the token must have that id. Otherwise it must
// have the next id after the vocabulary. The package `tokenizers` assigns ids in this way and ignores the ids
// in the file.
void check_ids(const std::vector<AddedToken>& added, const BpeModel& model) {
  std::unordered_set<std::string_view> contents;
  auto next = static_cast<std::int64_t>(model.vocabulary().size());
  for (const AddedToken& token : added) {
    const std::string who = "added token " + io::json_excerpt(token.content);
    if (!contents.insert(token.content).second) throw FormatError(who + " occurs twice");
    const auto known = model.find(token.content);
    if (known && *known != token.id)
      throw FormatError(who + " has id " + std::to_string(token.id) + ", but " + std::to_string(*known) +
                        " in the vocabulary");
    if (!known && token.id != next)
      throw FormatError(who + " has id " + std::to_string(token.id) + ", expected " + std::to_string(next) +
                        ": those that are not in the vocabulary follow it in order");
    if (!known) ++next;
  }
}

// Parses "<0x41>" as byte 0x41.
std::optional<char> byte_of_token(const std::string& text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
  };
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>' || digit(text[3]) < 0 ||
      digit(text[4]) < 0)
    return std::nullopt;
  return static_cast<char>(16 * digit(text[3]) + digit(text[4]));
}

std::string decoded(const HfToken& token, const HfStages& stages) {
  if (stages.byte_level) return token.added ? token.text : from_byte_letters(token.text).value_or(token.text);
  if (stages.decodes_bytes)
    if (const auto byte = byte_of_token(token.text)) return std::string(1, *byte);
  const std::string text = token.added ? token.bytes : token.text;
  return normalize({{NormalizeStep::Kind::replace, "\xe2\x96\x81", " "}}, text);
}

// If an added token and a token of the model have the same id, the added token is kept.
void sort_by_id(std::vector<HfToken>& tokens) {
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const HfToken& a, const HfToken& b) { return a.id < b.id; });
  std::size_t kept = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (kept > 0 && tokens[kept - 1].id == tokens[i].id) {
      if (tokens[kept - 1].text != tokens[i].text)
        throw FormatError("added token " + io::json_excerpt(tokens[i].text) + " has id " +
                          std::to_string(tokens[i].id) + ", which " +
                          io::json_excerpt(tokens[kept - 1].text) + " has too");
      --kept;
    }
    if (kept != i) tokens[kept] = std::move(tokens[i]);
    ++kept;
  }
  tokens.resize(kept);
}

// Whether text can be cut where words begin. The words on both sides are unchanged if no step prepends
// anything and no added token can span the cut.
bool can_be_cut_where_words_begin(const HfStages& stages, const std::vector<AddedToken>& added) {
  if (!stages.byte_level) return false;
  for (const NormalizeStep& step : stages.normalizer)
    if (step.kind != NormalizeStep::Kind::nfc) return false;
  for (const SplitStep& step : stages.pre_tokenizer)
    if (step.kind != SplitStep::Kind::words) return false;
  const auto is_space = [](char c) { return c == ' ' || c == '\n'; };
  return std::none_of(added.begin(), added.end(), [&](const AddedToken& t) {
    return t.lstrip || t.rstrip || std::any_of(t.content.begin(), t.content.end(), is_space);
  });
}

HfParts make_parts(ModelJson&& read, const std::vector<AddedToken>& added, HfStages&& stages) {
  read.options.byte_level = stages.byte_level;
  HfParts parts{
      .stages = std::move(stages),
      .model = BpeModel(std::move(read.vocabulary), std::move(read.merges), std::move(read.options))};
  check_ids(added, parts.model);
  for (const auto& [text, id] : parts.model.vocabulary()) parts.tokens.push_back({id, text});
  for (const AddedToken& token : added) {
    const std::string text =
        token.normalized ? normalize(parts.stages.normalizer, token.content) : token.content;
    if (text.empty())
      throw FormatError("added token " + io::json_excerpt(token.content) + " is empty when normalized");
    if (!(token.normalized ? parts.normalized_tokens : parts.raw_tokens).add(text, token))
      throw FormatError("added token " + io::json_excerpt(token.content) + " is another one when normalized");
    parts.tokens.push_back({token.id, token.content, text, token.special, true});
  }
  sort_by_id(parts.tokens);
  if (parts.tokens.empty()) throw FormatError("model.vocab is empty");
  for (HfToken& token : parts.tokens) token.bytes = decoded(token, parts.stages);
  for (const auto* ids : {&parts.stages.before, &parts.stages.after})
    for (const std::int32_t id : *ids)
      if (parts.token(id).text.empty())
        throw FormatError("post_processor has id " + std::to_string(id) + ", which no token has");
  if (parts.stages.pre_tokenizer.empty() ||
      parts.stages.pre_tokenizer.back().kind == SplitStep::Kind::meta_space)
    if (const auto& kept = parts.model.kept_before_spaces(); kept && !parts.model.options().ignore_merges)
      parts.stages.pre_tokenizer.push_back(
          {.kind = SplitStep::Kind::words, .rule = WordRule::spaces, .kept = *kept});
  parts.can_be_cut = can_be_cut_where_words_begin(parts.stages, added);
  parts.added = added;
  return parts;
}

}  // namespace

const HfToken& HfParts::token(std::int32_t id) const {
  static const auto& none = *new HfToken;
  if (static_cast<std::size_t>(id) < tokens.size())
    if (const HfToken& usual = tokens[static_cast<std::size_t>(id)]; usual.id == id) return usual;
  const auto at = std::lower_bound(tokens.begin(), tokens.end(), id,
                                   [](const HfToken& t, std::int32_t wanted) { return t.id < wanted; });
  return at != tokens.end() && at->id == id ? *at : none;
}

HfParts read_hf_parts(std::string text, const std::string& where) {
  JsonReader json(text, where);
  ModelJson model;
  std::vector<AddedToken> added;
  JsonTree normalizer, pre_tokenizer, post_processor, decoder;
  json.begin_object();
  while (const auto key = json.next_key()) {
    if (*key == "version") {
      if (const std::string version = json.string(); version != "1.0")
        json.fail("version is " + io::json_excerpt(version) + ", expected \"1.0\"");
    } else if (*key == "truncation" || *key == "padding") {
      // These settings describe the latest use before the file was saved. Each use sets them again, so they
      // are ignored.
      if (const JsonTree value = read_json_tree(json);
          !value.is_null() && value.kind != JsonReader::Kind::object)
        json.fail(*key + " is " + value.text() + ", expected null or an object");
    } else if (*key == "added_tokens") {
      json.begin_array();
      while (json.next_item()) added.push_back(read_added_token(json));
    } else if (*key == "normalizer") {
      normalizer = read_json_tree(json);
    } else if (*key == "pre_tokenizer") {
      pre_tokenizer = read_json_tree(json);
    } else if (*key == "post_processor") {
      post_processor = read_json_tree(json);
    } else if (*key == "decoder") {
      decoder = read_json_tree(json);
    } else if (*key == "model") {
      model = read_model(json);
    } else {
      json.fail(*key + " is " + read_json_tree(json).text() + ", which is not supported");
    }
  }
  json.end();
  if (!model.is_there) throw FormatError(where + ": it has no model");
  try {
    HfParts parts = make_parts(std::move(model), added,
                               read_hf_stages(normalizer, pre_tokenizer, post_processor, decoder));
    parts.json = std::move(text);
    return parts;
  } catch (const FormatError& e) {
    throw FormatError(where + ": " + e.what());
  }
}

}  // namespace tg::text
