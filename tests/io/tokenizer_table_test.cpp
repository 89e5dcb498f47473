// Checks the keys of tokenizer.json. tokenizer_table.txt contains the cases and their results. The results
// are the tokens of some strings, the keys of a GGUF file with the same tokenizer, and refused values.
#include <tilegrad/io/text/hf_tokenizer.h>

#include <tilegrad/io/files/json.h>
#include "io/models/gguf_metadata.h"
#include "tests/support/gguf_keys.h"

namespace {

using namespace tg;
using namespace tg::testing;
using Ids = std::vector<std::int32_t>;

std::string list_of(const Ids& ids) {
  std::string text;
  for (const std::int32_t id : ids) text += (text.empty() ? "" : " ") + std::to_string(id);
  return text;
}

// "vocab.TOKEN=ID" is an additional token of the vocabulary.
std::string json_of(Members members) {
  std::string outer, model;
  for (const auto& [key, value] : Members(members))
    if (key.starts_with("vocab.")) {
      std::string& all = members.at("model.vocab");
      all.insert(all.size() - 1, ",\"" + key.substr(6) + "\":" + value);
    }
  for (const auto& [key, value] : members) {
    const bool is_inner = key.starts_with("model.");
    if (key.starts_with("text") || key.starts_with("gguf.") || key.starts_with("vocab.")) continue;
    std::string& text = is_inner ? model : outer;
    text += (text.empty() ? "" : ", ") + io::json_string(is_inner ? key.substr(6) : key) + ": " + value;
  }
  return "{" + outer + (model.empty() ? "" : ", \"model\": {" + model + "}") + "}";
}

std::string tokens_of(const text::HfTokenizer& tokenizer, const std::string& text) {
  Ids ids, whole, plain;
  const std::string error =
      error_of([&] { ids = tokenizer.encode(text), whole = tokenizer.encode_whole(text); });
  if (error != "no error") return error;
  const std::string of_plain = error_of([&] { plain = tokenizer.encode(text, {.special = false}); });
  std::string joined;
  for (const std::int32_t id : ids) joined += tokenizer.continuation(id);
  return list_of(ids) + (whole != ids ? " whole " + list_of(whole) : "") +
         (plain != ids ? " plain " + (plain.empty() ? of_plain : list_of(plain)) : "") +
         (tokenizer.decode(ids) != text ? " decoded " + io::json_string(tokenizer.decode(ids)) : "") +
         (joined != tokenizer.decode(ids) ? " continued " + io::json_string(joined) : "");
}

Results gguf_results(const text::HfTokenizer& tokenizer, const Members& members) {
  io::HfConfig config;
  const auto number = [&](const char* key, std::int64_t usual) {
    const auto found = members.find(key);
    return found == members.end() ? usual : std::stoll(found->second);
  };
  config.model.vocabulary = number("gguf.vocabulary", tokenizer.size());
  if (members.contains("gguf.start")) config.start_token = number("gguf.start", 0);
  if (members.contains("gguf.pad")) config.padding_token = number("gguf.pad", 0);
  for (const char* key : {"gguf.end0", "gguf.end1", "gguf.end2", "gguf.end3"})
    if (members.contains(key)) config.end_tokens.push_back(number(key, 0));
  io::GgufStart start;
  std::vector<std::string> notes;
  const std::string chat = members.contains("gguf.template") ? members.at("gguf.template") : "";
  const std::string error =
      error_of([&] { io::add_gguf_tokenizer(&tokenizer, config, chat, "F", start, notes); });
  if (error != "no error") return {{"refused", {{"", error}}}};
  const std::string bytes = start.bytes();
  const io::Gguf file(bytes, "F");
  Results results{{"gguf", keys_of(file)}};
  for (std::size_t i = 0; i < notes.size(); ++i) results["gguf"]["note " + std::to_string(i)] = notes[i];
  std::shared_ptr<const text::HfTokenizer> read;
  const std::string refusal = error_of([&] { read = io::read_gguf_tokenizer(file); });
  if (refusal != "no error") return results["back"][""] = refusal, results;
  for (const auto& [key, value] : members) {
    if (!key.starts_with("text")) continue;
    io::JsonReader json(value, "text");
    const std::string text = json.string();
    if (const std::string got = tokens_of(*read, text); got != tokens_of(tokenizer, text))
      results["back"][key] = got;
  }
  return results;
}

TEST(TokenizerTable, TokenizerJsonKeysMatchTheTable) {
  expect_table(TG_TABLES "tokenizer_table.txt", [](const Members& members) -> Results {
    std::unique_ptr<text::HfTokenizer> tokenizer;
    const std::string error =
        error_of([&] { tokenizer = std::make_unique<text::HfTokenizer>(json_of(members), "m"); });
    if (error != "no error") return {{"error", {{"", error}}}};
    const text::HfTokenizer& t = *tokenizer;
    Results results = gguf_results(t, members);
    Members& is = results["is"];
    is["size"] = std::to_string(t.size()), is["before"] = list_of(t.before()),
    is["after"] = list_of(t.after());
    is["unknown"] = t.unknown_token().value_or("none");
    if (t.is_byte_level()) is["bytes"] = "yes";
    if (t.ignores_merges()) is["ignores merges"] = "yes";
    if (t.has_byte_fallback()) is["fallback"] = "yes";
    if (t.safe_cut("aa bb", 4) == 2) is["cut"] = "yes";
    for (std::int32_t id = 0; id < std::min<std::int64_t>(t.size(), 40); ++id) {
      const std::string bytes = t.continuation(id), text = t.token_text(id);
      results["tokens"][std::to_string(id)] =
          io::json_string(text) + (bytes != text ? " " + io::json_string(bytes) : "") +
          (t.is_added(id) ? " added" : "") + (t.is_special(id) ? " special" : "");
      if (!text.empty()) {
        EXPECT_EQ(t.find(text), id);
      }
    }
    for (const auto& [key, value] : members) {
      if (!key.starts_with("text")) continue;
      io::JsonReader json(value, "text");
      results["ids"][key] = tokens_of(t, json.string());
    }
    const auto again = text::load_tokenizer(t.metadata(), "m");
    EXPECT_EQ(again->metadata(), t.metadata());
    return results;
  });
}

}  // namespace
