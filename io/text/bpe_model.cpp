#include "io/text/bpe_model.h"

#include <algorithm>
#include <cstdio>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include "io/files/utf8.h"

namespace tg::text {
namespace {

constexpr char32_t not_a_character = 0x110000;           // a byte that is not UTF-8
constexpr std::string_view meta_space = "\xe2\x96\x81";  // ▁

std::string fallback_text(int byte) {
  char text[8];
  std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(byte));
  return text;
}

}  // namespace

BpeModel::BpeModel(std::vector<Entry> vocabulary, const std::vector<Merge>& merges, Options options)
    : options_(std::move(options)),
      vocabulary_(std::move(vocabulary)),
      merges_(merges),
      table_(merges.size()) {
  std::sort(vocabulary_.begin(), vocabulary_.end(),
            [](const Entry& a, const Entry& b) { return a.second < b.second; });
  ids_.reserve(vocabulary_.size());
  for (std::size_t i = 0; i < vocabulary_.size(); ++i) {
    const auto& [text, id] = vocabulary_[i];
    const std::string who = "model.vocab: token " + io::json_excerpt(text);
    if (text.empty() || id < 0)
      throw FormatError(who + " with id " + std::to_string(id) + ", expected text and an id from 0");
    if (i > 0 && vocabulary_[i - 1].second == id)
      throw FormatError(who + " has id " + std::to_string(id) + ", which " +
                        io::json_excerpt(vocabulary_[i - 1].first) + " has too");
    if (!ids_.emplace(text, id).second) throw FormatError(who + " occurs twice");
  }
  if (options_.unknown) {
    unknown_ = id_of(*options_.unknown);
    if (unknown_ < 0)
      throw FormatError("model.unk_token is " + io::json_excerpt(*options_.unknown) +
                        ", which is not in the vocabulary");
  }
  character_ids_.fill(-1);
  for (char32_t c = 0; c < character_ids_.size(); ++c) {
    std::string text;
    io::utf8_append(text, c);
    character_ids_[c] = id_of(text);
  }
  for (int byte = 0; byte < 256; ++byte)
    byte_ids_[static_cast<std::size_t>(byte)] = id_of(fallback_text(byte));

  std::string joined;
  // Adds merges in reverse order, because the table keeps the first entry that is added for a pair.
  for (std::size_t rank = merges_.size(); rank-- > 0;) {
    const std::string &left = merges_[rank].first, &right = merges_[rank].second;
    joined = left;
    joined += right;
    const auto id = [&](const std::string& text) {
      const std::int32_t found = id_of(text);
      if (found < 0)
        throw FormatError("model.merges: merge " + std::to_string(rank) + " (" + io::json_excerpt(left) +
                          ", " + io::json_excerpt(right) + ") needs token " + io::json_excerpt(text) +
                          ", which is not in the vocabulary");
      return found;
    };
    const std::int32_t first = id(left), second = id(right);
    table_.add(first, second, static_cast<std::uint32_t>(rank), id(joined));
  }
  find_kept_before_spaces();
}

void BpeModel::find_kept_before_spaces() {
  constexpr std::size_t most = 16;
  if (id_of(meta_space) < 0) return;  // an unknown ▁ would not separate words
  std::vector<std::string> kept;
  for (const auto& [left, right] : merges_) {
    if (!right.starts_with(meta_space) || left.ends_with(meta_space)) continue;
    // A byte token or an unknown token represents characters that differ from its string.
    const bool is_byte =
        left.size() >= 6 && left.ends_with('>') && left.compare(left.size() - 6, 3, "<0x") == 0;
    if (is_byte || (options_.unknown && left.ends_with(*options_.unknown))) return;
    std::size_t last = left.size() - 1;
    while (last > 0 && (left[last] & 0xc0) == 0x80) --last;
    if (std::find(kept.begin(), kept.end(), left.substr(last)) == kept.end())
      kept.push_back(left.substr(last));
    if (kept.size() > most) return;
  }
  kept_before_spaces_ = std::move(kept);
}

std::int32_t BpeModel::id_of(std::string_view text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? -1 : found->second;
}

std::optional<std::int32_t> BpeModel::find(std::string_view text) const {
  const std::int32_t id = id_of(text);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::int32_t BpeModel::id_of_character(std::string_view character, char32_t code) const {
  return code < character_ids_.size() ? character_ids_[code] : id_of(character);
}

void BpeModel::encode(std::string_view word, std::vector<std::int32_t>& ids) const {
  ids.clear();
  std::string letters;
  if (options_.byte_level) {
    letters = to_byte_letters(word);
    word = letters;
  }
  if (options_.ignore_merges)
    if (const std::int32_t id = id_of(word); id >= 0) {
      ids.push_back(id);
      return;
    }
  // As in the package `tokenizers`, an unknown token is not written immediately. It is written before the
  // next known token, or before another unknown token that is not fused with it. Byte tokens that follow it
  // are written first.
  bool pending = false;
  const auto write_pending = [&] {
    if (pending) ids.push_back(unknown_);
    pending = false;
  };
  for (std::size_t i = 0; i < word.size();) {
    char32_t code = 0;
    std::size_t length = io::utf8_decode(word, i, code);
    if (length == 0) length = 1, code = not_a_character;
    const std::string_view character = word.substr(i, length);
    i += length;
    if (const std::int32_t id = id_of_character(character, code); id >= 0) {
      write_pending();
      ids.push_back(id);
      continue;
    }
    const auto byte_id = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
    if (options_.byte_fallback &&
        std::all_of(character.begin(), character.end(), [&](char c) { return byte_id(c) >= 0; })) {
      for (const char c : character) ids.push_back(byte_id(c));
      continue;
    }
    if (unknown_ < 0) {
      const std::string shown =
          options_.byte_level ? from_byte_letters(character).value_or("") : std::string(character);
      char byte[8];
      std::snprintf(byte, sizeof byte, "0x%02x", static_cast<unsigned char>(shown[0]));
      throw Error("[encode] " +
                  (options_.byte_level || code == not_a_character ? "byte " + std::string(byte)
                                                                  : io::json_excerpt(shown)) +
                  " has no token, and the tokenizer has no unknown token");
    }
    if (!options_.fuse_unknown) write_pending();
    pending = true;
  }
  write_pending();
  ids.resize(table_.apply(ids));
}

}  // namespace tg::text
