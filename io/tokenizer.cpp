#include "io/tokenizer.h"

#include "core/error.h"
#include "io/bpe.h"
#include "io/text.h"
#include "io/utf8.h"

namespace tg {

namespace detail {

void want_id(std::int32_t id, std::int64_t size) {
  if (id < 0 || id >= size)
    throw Error("[decode] id " + std::to_string(id) + ", wanted 0 to " + std::to_string(size - 1));
}

}  // namespace detail

std::vector<std::int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size());
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string ByteTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (const std::int32_t id : ids) {
    detail::want_id(id, size());
    text += static_cast<char>(id);
  }
  return text;
}

std::unique_ptr<Tokenizer> load_tokenizer(const Metadata& metadata, const std::string& where) {
  const auto value = [&](const std::string& key) -> const std::string& {
    const auto found = metadata.find(key);
    if (found == metadata.end()) throw FormatError(where + ": metadata has no " + key);
    return found->second;
  };
  const std::string& kind = value("tokenizer");
  if (kind == "bytes") return std::make_unique<ByteTokenizer>();
  if (kind == "bpe") return std::make_unique<Bpe>(parse_merges(value("merges"), where + ": merges"));
  if (kind != "chars") throw FormatError(where + ": tokenizer is '" + kind + "', wanted chars, bytes or bpe");
  const std::string& text = value("characters");
  if (text.empty() || utf8_valid_bytes(text) != text.size())
    throw FormatError(where + ": characters are not UTF-8 text of one character or more");
  std::vector<char32_t> characters;
  for (std::size_t i = 0; i < text.size();) characters.push_back(utf8_next(text, i));
  return std::make_unique<CharVocab>(std::move(characters));
}

}  // namespace tg
