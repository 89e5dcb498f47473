#include "io/text/hf_stages.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <limits>

#include <tilegrad/core/base/error.h>
#include "io/text/unicode.h"

namespace tg::text {
namespace {

using Tree = io::JsonTree;
using Kind = io::JsonReader::Kind;

constexpr std::string_view meta_mark = "\xe2\x96\x81";  // ▁

[[noreturn]] void refuse_stage(const std::string& where, const Tree& value, const std::string& expected) {
  throw FormatError(where + " is " + value.text() + ", expected " + expected);
}

// A stage: an object with a type and options. All of them must be known.
class Stage {
 public:
  Stage(const Tree& tree, std::string where) : tree_(tree), where_(std::move(where)) {
    if (tree.kind != Kind::object) refuse_stage(where_, tree, "an object");
    type_ = string("type");
  }
  const std::string& type() const { return type_; }
  const std::string& where() const { return where_; }
  std::string text() const { return tree_.text(); }
  bool has(std::string_view key) const { return tree_.find(key) != nullptr; }

  void has_only(std::initializer_list<std::string_view> options) const {
    for (const auto& [key, value] : tree_.members)
      if (key != "type" && std::find(options.begin(), options.end(), key) == options.end())
        throw FormatError(where_ + " (" + type_ + ") has " + key + " = " + value.text() +
                          ", which is not supported");
  }
  const Tree& value(std::string_view key) const {
    const Tree* found = tree_.find(key);
    if (found == nullptr) throw FormatError(where_ + " has no " + std::string(key));
    return *found;
  }
  std::string string(std::string_view key) const {
    const Tree& found = value(key);
    if (found.kind != Kind::string) refuse_stage(where_ + "." + std::string(key), found, "a string");
    return found.scalar;
  }
  bool boolean(std::string_view key, std::optional<bool> otherwise = std::nullopt) const {
    if (otherwise && !has(key)) return *otherwise;
    const Tree& found = value(key);
    if (found.kind != Kind::logical) refuse_stage(where_ + "." + std::string(key), found, "true or false");
    return found.logical;
  }
  // Returns the members of a Sequence.
  std::vector<Stage> stages(std::string_view key) const {
    has_only({key});
    const Tree& list = value(key);
    const std::string name = where_ + "." + std::string(key);
    if (list.kind != Kind::array) refuse_stage(name, list, "an array");
    std::vector<Stage> found;
    for (std::size_t i = 0; i < list.items.size(); ++i)
      found.emplace_back(list.items[i], name + "[" + std::to_string(i) + "]");
    return found;
  }
  // Reads {"String": …} or, if `regex`, {"Regex": …}.
  std::string pattern(bool regex) const {
    const Tree& found = value("pattern");
    const Tree* text = found.members.size() == 1 ? found.find(regex ? "Regex" : "String") : nullptr;
    if (text == nullptr || text->kind != Kind::string || text->scalar.empty())
      refuse_stage(where_ + ".pattern", found, regex ? "a Regex" : "a String");
    return text->scalar;
  }
  [[noreturn]] void refuse_type(const std::string& expected) const {
    throw FormatError(where_ + ".type is " + io::json_excerpt(type_) + ", expected " + expected);
  }

 private:
  const Tree& tree_;
  std::string where_, type_;
};

void read_normalizer(const Stage& stage, std::vector<NormalizeStep>& steps) {
  if (stage.type() == "Sequence") {
    for (const Stage& one : stage.stages("normalizers")) read_normalizer(one, steps);
  } else if (stage.type() == "NFC") {
    stage.has_only({});
    steps.push_back({NormalizeStep::Kind::nfc});
  } else if (stage.type() == "Prepend") {
    stage.has_only({"prepend"});
    steps.push_back({NormalizeStep::Kind::prepend, "", stage.string("prepend")});
  } else if (stage.type() == "Replace") {
    stage.has_only({"pattern", "content"});
    steps.push_back({NormalizeStep::Kind::replace, stage.pattern(false), stage.string("content")});
  } else {
    stage.refuse_type("NFC, Prepend, Replace or Sequence");
  }
}

SplitStep::Prefix prefix_of(const Stage& stage) {
  const std::string name = stage.has("prepend_scheme") ? stage.string("prepend_scheme") : "always";
  if (name == "never") return SplitStep::Prefix::never;
  if (!stage.boolean("add_prefix_space", true))
    throw FormatError(stage.where() + ".add_prefix_space is false, but prepend_scheme is \"" + name + "\"");
  if (name == "always") return SplitStep::Prefix::always;
  if (name == "first") return SplitStep::Prefix::first;
  throw FormatError(stage.where() + ".prepend_scheme is " + io::json_excerpt(name) +
                    ", expected always, first or never");
}

void read_split(const Stage& stage, HfStages& stages) {
  stage.has_only({"pattern", "behavior", "invert"});
  const std::string behavior = stage.string("behavior");
  const bool inverts = stage.boolean("invert");
  // Gemma's pre-tokenizer splits at spaces. This has no effect, because its normalizer has already replaced
  // all spaces.
  const bool no_spaces = std::any_of(
      stages.normalizer.begin(), stages.normalizer.end(),
      [](const NormalizeStep& s) { return s.kind == NormalizeStep::Kind::replace && s.from == " "; });
  const Tree& pattern = stage.value("pattern");
  if (const Tree* text = pattern.find("String");
      no_spaces && !inverts && text != nullptr && text->scalar == " ")
    return;
  // With "Isolated", the matches and the text between them are the words of tilegrad's rules. With "Removed"
  // and invert, the text between matches is removed. That text is empty if the pattern matches all text.
  const bool removes = behavior == "Removed" && inverts;
  if (behavior != "Isolated" && !removes)
    throw FormatError(stage.where() + ".behavior is " + io::json_excerpt(behavior) + " with invert " +
                      (inverts ? "true" : "false") + ", expected Isolated, or Removed with invert true");
  const std::string text = stage.pattern(true);
  const auto rule = rule_of_pattern(text);
  if (removes && !(rule && matches_all_text(*rule)))
    refuse_stage(
        stage.where() + ".pattern", pattern,
        "one that matches all text, as those of GPT-2, GPT-4, GPT-4o, Llama 3, Qwen and Tekken, where the "
        "rest is removed");
  if (rule) {
    stages.pre_tokenizer.push_back({SplitStep::Kind::words, *rule});
    return;
  }
  auto runs = CharRuns::parse(text);
  // "$" also matches at the end of a line, so an earlier step must have isolated line breaks.
  const auto is_line_break = [](const SplitStep& s) { return s.runs && s.runs->pattern() == "[\r\n]"; };
  const bool has_lines =
      std::none_of(stages.pre_tokenizer.begin(), stages.pre_tokenizer.end(), is_line_break);
  if (!runs || (has_lines && text.ends_with('$')))
    refuse_stage(stage.where() + ".pattern", pattern,
                 "one of those of GPT-2, GPT-4, GPT-4o, Llama 3, Qwen 2, Qwen 3.5, Tekken and DeepSeek");
  stages.pre_tokenizer.push_back({SplitStep::Kind::runs, {}, std::move(runs)});
}

void read_pre_tokenizer(const Stage& stage, HfStages& stages) {
  if (stages.byte_level)  // later steps would see bytes as letters
    throw FormatError(stage.where() + " is " + stage.text() + ", expected nothing after ByteLevel");
  if (stage.type() == "Sequence") {
    for (const Stage& one : stage.stages("pretokenizers")) read_pre_tokenizer(one, stages);
  } else if (stage.type() == "ByteLevel") {
    stage.has_only({"add_prefix_space", "trim_offsets", "use_regex"});
    if (stage.boolean("add_prefix_space")) stages.pre_tokenizer.push_back({SplitStep::Kind::prefix_space});
    if (stage.boolean("use_regex", true))
      stages.pre_tokenizer.push_back({SplitStep::Kind::words, WordRule::gpt2});
    stages.byte_level = true;
  } else if (stage.type() == "Digits") {
    stage.has_only({"individual_digits"});
    stages.pre_tokenizer.push_back({SplitStep::Kind::words, stage.boolean("individual_digits")
                                                                ? WordRule::each_digit
                                                                : WordRule::digits});
  } else if (stage.type() == "Metaspace") {
    stage.has_only({"replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    if (stage.string("replacement") != meta_mark)
      refuse_stage(stage.where() + ".replacement", stage.value("replacement"), "▁");
    stages.pre_tokenizer.push_back({.kind = SplitStep::Kind::meta_space, .prefix = prefix_of(stage)});
    if (stage.boolean("split", true))
      stages.pre_tokenizer.push_back({SplitStep::Kind::words, WordRule::each_space});
  } else if (stage.type() == "Split") {
    read_split(stage, stages);
  } else {
    stage.refuse_type("ByteLevel, Digits, Metaspace, Split or Sequence");
  }
}

std::int32_t template_id(const Tree& value, const std::string& where) {
  std::int32_t id = -1;
  const std::string& digits = value.scalar;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
  if (value.kind != Kind::number || error != std::errc() || end != digits.data() + digits.size() || id < 0)
    refuse_stage(where, value, "an id");
  return id;
}

// Adds tokens around the tokens of earlier post-processors.
void put_around(HfStages& stages, const std::vector<std::int32_t>& before,
                const std::vector<std::int32_t>& after) {
  stages.before.insert(stages.before.begin(), before.begin(), before.end());
  stages.after.insert(stages.after.end(), after.begin(), after.end());
}

void read_template(const Stage& stage, HfStages& stages) {
  stage.has_only({"single", "pair", "special_tokens"});
  const Tree& pieces = stage.value("single");
  std::vector<std::int32_t> before, after;
  int texts = 0;
  for (std::size_t i = 0; i < pieces.items.size(); ++i) {
    const Tree& piece = pieces.items[i];
    const std::string where = stage.where() + ".single[" + std::to_string(i) + "]";
    if (const Tree* text = piece.find("Sequence")) {
      if (const Tree* id = text->find("id"); id == nullptr || id->scalar != "A")
        refuse_stage(where, piece, "sequence A");
      ++texts;
      continue;
    }
    const Tree* token = piece.find("SpecialToken");
    const Tree* name = token == nullptr ? nullptr : token->find("id");
    const Tree* known = name == nullptr ? nullptr : stage.value("special_tokens").find(name->scalar);
    const Tree* ids = known == nullptr ? nullptr : known->find("ids");
    if (ids == nullptr || ids->kind != Kind::array)
      refuse_stage(where, piece, "a Sequence, or a SpecialToken that special_tokens has");
    for (const Tree& id : ids->items) (texts > 0 ? after : before).push_back(template_id(id, where));
  }
  if (texts != 1) refuse_stage(stage.where() + ".single", pieces, "sequence A once");
  put_around(stages, before, after);
}

// Reads a token's string and its id, such as ["</s>", 2], and returns the id.
std::int32_t pair_id(const Stage& stage, const char* key) {
  const Tree& pair = stage.value(key);
  if (pair.items.size() != 2) refuse_stage(stage.where() + "." + key, pair, "a token's text and its id");
  return template_id(pair.items[1], stage.where() + "." + key);
}

void read_post_processor(const Stage& stage, HfStages& stages) {
  if (stage.type() == "Sequence") {
    for (const Stage& one : stage.stages("processors")) read_post_processor(one, stages);
  } else if (stage.type() == "TemplateProcessing") {
    read_template(stage, stages);
  } else if (stage.type() == "ByteLevel") {  // affects only offsets
    stage.has_only({"add_prefix_space", "trim_offsets", "use_regex"});
  } else if (stage.type() == "RobertaProcessing" || stage.type() == "BertProcessing") {
    // The other options affect only offsets.
    stage.has_only({"sep", "cls", "trim_offsets", "add_prefix_space"});
    put_around(stages, {pair_id(stage, "cls")}, {pair_id(stage, "sep")});
  } else {
    stage.refuse_type("TemplateProcessing, RobertaProcessing, BertProcessing, ByteLevel or Sequence");
  }
}

// Accepts ByteLevel, or [Replace ▁, ByteFallback, Fuse, Strip]. Only Replace ▁ is required in the list.
void read_decoder(const Stage& stage, HfStages& stages) {
  const std::string expected =
      stages.byte_level ? "ByteLevel"
                        : "a Sequence of Replace ▁ by a space, ByteFallback, Fuse and Strip of one space";
  std::vector<Stage> steps;
  if (stage.type() == "Sequence") {
    steps = stage.stages("decoders");
  } else {
    steps.push_back(stage);
  }
  std::size_t i = 0;
  const auto take = [&](std::string_view type) { return i < steps.size() && steps[i].type() == type && ++i; };
  if (stages.byte_level) {
    if (!take("ByteLevel")) stage.refuse_type(expected);
    stages.decodes_bytes = true;
  } else {
    if (!take("Replace")) stage.refuse_type(expected);
    if (steps[0].pattern(false) != meta_mark || steps[0].string("content") != " ")
      throw FormatError(steps[0].where() + " replaces something else, expected ▁ by a space");
    stages.decodes_bytes = take("ByteFallback");
    if (take("Fuse") && take("Strip")) {
      const Stage& strip = steps[i - 1];
      if (strip.string("content") != " " || strip.value("start").scalar != "1" ||
          strip.value("stop").scalar != "0")
        throw FormatError(strip.where() + " strips something else, expected one space at the start");
      stages.strips_first_space = true;
    }
  }
  if (i < steps.size()) steps[i].refuse_type(expected);
}

}  // namespace

std::size_t SplitStep::end(std::string_view text, std::size_t i) const {
  if (runs) return runs->word_end(text, i);
  std::size_t end = word_end(rule, text, i);
  const auto is_kept = [&](const std::string& c) { return text.substr(0, end).ends_with(c); };
  while (end < text.size() && std::any_of(kept.begin(), kept.end(), is_kept)) end = word_end(rule, text, end);
  return end;
}

HfStages read_hf_stages(const Tree& normalizer, const Tree& pre_tokenizer, const Tree& post_processor,
                        const Tree& decoder) {
  HfStages stages;
  if (!normalizer.is_null()) read_normalizer(Stage(normalizer, "normalizer"), stages.normalizer);
  if (!pre_tokenizer.is_null()) read_pre_tokenizer(Stage(pre_tokenizer, "pre_tokenizer"), stages);
  if (!post_processor.is_null()) read_post_processor(Stage(post_processor, "post_processor"), stages);
  read_decoder(Stage(decoder, "decoder"), stages);
  return stages;
}

std::string normalize(const std::vector<NormalizeStep>& steps, std::string_view text) {
  std::string now(text);
  for (const NormalizeStep& step : steps) {
    if (step.kind == NormalizeStep::Kind::nfc) {
      now = nfc(now);
    } else if (step.kind == NormalizeStep::Kind::prepend) {
      if (!now.empty()) now.insert(0, step.to);
    } else {
      std::string replaced;
      replaced.reserve(now.size());
      for (std::size_t i = 0;;) {
        const std::size_t found = now.find(step.from, i);
        replaced.append(now, i, found == std::string::npos ? found : found - i);
        if (found == std::string::npos) break;
        replaced += step.to;
        i = found + step.from.size();
      }
      now = std::move(replaced);
    }
  }
  return now;
}

}  // namespace tg::text
