#include <tilegrad/io/text/hf_tokenizer.h>

#include <algorithm>
#include <filesystem>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/json.h>
#include "io/text/bpe_model.h"
#include "io/text/hf_parts.h"
#include "io/text/word_cache.h"

namespace tg::text {
namespace {

constexpr std::string_view meta_letter = "\xe2\x96\x81";  // ▁

// One call of encode().
class HfEncoding {
 public:
  HfEncoding(const HfParts& parts, std::string_view text) : parts_(parts), cache_(text.size()) {}

  std::vector<std::int32_t> run(std::string_view text, bool special) {
    for (const auto& part : parts_.raw_tokens.split(text, special)) {
      if (part.id) {
        ids_.push_back(*part.id);
        continue;
      }
      const std::string_view raw = text.substr(part.begin, part.end - part.begin);
      if (parts_.stages.normalizer.empty()) {
        normalized_part(raw, special, part.begin == 0);
      } else {
        normalized_part(normalize(parts_.stages.normalizer, raw), special, part.begin == 0);
      }
    }
    return std::move(ids_);
  }

 private:
  void normalized_part(std::string_view text, bool special, bool begins) {
    for (const auto& part : parts_.normalized_tokens.split(text, special)) {
      if (part.id) {
        ids_.push_back(*part.id);
      } else {
        pre_tokenize(0, text.substr(part.begin, part.end - part.begin), begins && part.begin == 0);
      }
    }
  }

  // Applies the steps starting at index k to a piece from earlier steps. `begins`: whether the piece is at
  // the start of the text.
  void pre_tokenize(std::size_t k, std::string_view piece, bool begins) {
    const std::vector<SplitStep>& steps = parts_.stages.pre_tokenizer;
    if (k == steps.size()) return encode_word(piece);
    const SplitStep& step = steps[k];
    if (step.kind == SplitStep::Kind::words || step.kind == SplitStep::Kind::runs) {
      for (std::size_t i = 0, end = 0; i < piece.size(); i = end) {
        end = step.end(piece, i);
        pre_tokenize(k + 1, piece.substr(i, end - i), begins && i == 0);
      }
    } else if (step.kind == SplitStep::Kind::prefix_space) {
      if (piece.starts_with(' ')) return pre_tokenize(k + 1, piece, begins);
      pre_tokenize(k + 1, " " + std::string(piece), begins);
    } else {
      std::string text = normalize({{NormalizeStep::Kind::replace, " ", std::string(meta_letter)}}, piece);
      const bool prefix =
          step.prefix == SplitStep::Prefix::always || (step.prefix == SplitStep::Prefix::first && begins);
      if (prefix && !text.starts_with(meta_letter)) text.insert(0, meta_letter);
      pre_tokenize(k + 1, text, begins);
    }
  }

  void encode_word(std::string_view word) {
    WordCache::Entry& entry = cache_.find(word);
    if (entry.length != 0) {
      const auto known = cache_.tokens(entry);
      ids_.insert(ids_.end(), known.begin(), known.end());
      return;
    }
    parts_.model.encode(word, tokens_);
    ids_.insert(ids_.end(), tokens_.begin(), tokens_.end());
    cache_.fill(entry, word, tokens_);
  }

  const HfParts& parts_;
  WordCache cache_;
  std::vector<std::int32_t> ids_, tokens_;
};

}  // namespace

HfTokenizer::HfTokenizer(std::string json, const std::string& where)
    : parts_(std::make_shared<const Parts>(read_hf_parts(std::move(json), where))) {}

HfTokenizer HfTokenizer::open(const std::string& path) {
  std::error_code error;
  const std::string file = std::filesystem::is_directory(path, error) ? path + "/tokenizer.json" : path;
  return HfTokenizer(io::read_file(file, "tokenizer"), "[tokenizer] " + file);
}

std::vector<std::int32_t> HfTokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::vector<std::int32_t> ids = HfEncoding(*parts_, text).run(text, options.special);
  if (!options.whole) return ids;
  ids.insert(ids.begin(), before().begin(), before().end());
  ids.insert(ids.end(), after().begin(), after().end());
  return ids;
}

std::string HfTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) text += continuation(id);
  if (parts_->stages.strips_first_space && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

std::string HfTokenizer::continuation(std::int32_t id) const {
  if (id < 0) detail::check_id(id, size());
  return parts_->token(id).bytes;
}

std::string HfTokenizer::token_text(std::int32_t id) const {
  detail::check_id(id, size());
  return parts_->token(id).text;
}

std::size_t HfTokenizer::safe_cut(std::string_view text, std::size_t limit) const {
  return parts_->can_be_cut ? text::safe_cut(text, limit) : 0;
}

std::optional<std::int32_t> HfTokenizer::find(std::string_view token_text) const {
  if (const auto id = parts_->model.find(token_text)) return id;
  for (const HfToken& token : parts_->tokens)
    if (token.added && token.text == token_text) return token.id;
  return std::nullopt;
}

const std::string& HfTokenizer::json() const {
  return parts_->json;
}
bool HfTokenizer::is_special(std::int32_t id) const {
  return parts_->token(id).special;
}
bool HfTokenizer::is_added(std::int32_t id) const {
  return parts_->token(id).added;
}
bool HfTokenizer::is_byte_level() const {
  return parts_->stages.byte_level;
}
bool HfTokenizer::ignores_merges() const {
  return parts_->model.options().ignore_merges;
}
const std::vector<std::pair<std::string, std::string>>& HfTokenizer::merges() const {
  return parts_->model.merges();
}
const std::vector<std::int32_t>& HfTokenizer::before() const {
  return parts_->stages.before;
}
const std::vector<std::int32_t>& HfTokenizer::after() const {
  return parts_->stages.after;
}
std::optional<std::string> HfTokenizer::unknown_token() const {
  return parts_->model.options().unknown;
}
bool HfTokenizer::has_byte_fallback() const {
  return parts_->model.options().byte_fallback;
}
const std::vector<AddedToken>& HfTokenizer::added_tokens() const {
  return parts_->added;
}
const HfStages& HfTokenizer::stages() const {
  return parts_->stages;
}
std::int64_t HfTokenizer::size() const {
  return std::int64_t{parts_->tokens.back().id} + 1;
}
io::Metadata HfTokenizer::metadata() const {
  return {{"tokenizer", "hf"}, {"tokenizer.json", json()}};
}

}  // namespace tg::text
