#include <tilegrad/io/text/tokenizer.h>

#include <charconv>
#include <limits>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/text/bpe.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include <tilegrad/io/text/text.h>
#include "io/files/utf8.h"

namespace tg::text {

namespace detail {

void check_id(std::int32_t id, std::int64_t size) {
  if (id < 0 || id >= size)
    throw Error("[decode] id " + std::to_string(id) + ", expected 0 to " + std::to_string(size - 1));
}

}  // namespace detail

std::size_t Tokenizer::safe_cut(std::string_view text, std::size_t limit) const {
  return text::safe_cut(text, limit);
}

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
    detail::check_id(id, size());
    text += static_cast<char>(id);
  }
  return text;
}

NumberTokenizer::NumberTokenizer(std::int64_t size) : size_(size) {
  if (size < 1 || size > std::numeric_limits<std::int32_t>::max())
    throw Error("[tokenizer] got a vocabulary of " + std::to_string(size) + ", expected 1 to 2147483647");
}

std::vector<std::int32_t> NumberTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  for (const char *at = text.data(), *end = at + text.size(); at != end;) {
    if (*at == ' ' || *at == '\n') {
      ++at;
      continue;
    }
    std::int32_t id = -1;
    const auto [stop, error] = std::from_chars(at, end, id);
    if (error != std::errc() || id < 0 || id >= size_ || (stop != end && *stop != ' ' && *stop != '\n'))
      throw Error("[encode] expected numbers from 0 to " + std::to_string(size_ - 1) + ", at byte " +
                  std::to_string(at - text.data()));
    ids.push_back(id);
    at = stop;
  }
  return ids;
}

std::string NumberTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    detail::check_id(id, size_);
    text += std::to_string(id) + " ";
  }
  return text;
}

io::Metadata NumberTokenizer::metadata() const {
  return {{"tokenizer", "numbers"}, {"vocabulary", std::to_string(size_)}};
}

std::unique_ptr<Tokenizer> load_tokenizer(const io::Metadata& metadata, const std::string& where) {
  const auto value = [&](const std::string& key) -> const std::string& {
    const auto found = metadata.find(key);
    if (found == metadata.end()) throw FormatError(where + ": metadata has no " + key);
    return found->second;
  };
  const std::string& kind = value("tokenizer");
  if (kind == "bytes") return std::make_unique<ByteTokenizer>();
  const auto made = [&](auto make) -> std::unique_ptr<Tokenizer> {
    try {
      return make();
    } catch (const FormatError& e) {
      throw FormatError(where + ": " + e.what());
    }
  };
  if (kind == "bpe") {
    auto merges = parse_merges(value("merges"), where + ": merges");
    const auto words = metadata.find("words");  // absent in older checkpoints
    if (words != metadata.end() && words->second != "gpt2")
      throw FormatError(where + ": words is '" + words->second + "', expected gpt2");
    const WordRule rule = words == metadata.end() ? WordRule::bytes : WordRule::gpt2;
    return made([&] { return std::make_unique<Bpe>(std::move(merges), rule); });
  }
  if (kind == "hf") return std::make_unique<HfTokenizer>(value("tokenizer.json"), where + ": tokenizer.json");
  if (kind == "numbers") {
    const std::string& text = value("vocabulary");
    std::int64_t size = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc() || end != text.data() + text.size() || size < 1 ||
        size > std::numeric_limits<std::int32_t>::max())
      throw FormatError(where + ": vocabulary is '" + text + "', expected 1 to 2147483647");
    return std::make_unique<NumberTokenizer>(size);
  }
  if (kind != "chars")
    throw FormatError(where + ": tokenizer is '" + kind + "', expected chars, bytes, bpe, numbers or hf");
  const std::string& text = value("characters");
  if (text.empty() || io::utf8_valid_bytes(text) != text.size())
    throw FormatError(where + ": characters are not UTF-8 text of one character or more");
  std::vector<char32_t> characters;
  for (std::size_t i = 0; i < text.size();) characters.push_back(io::utf8_next(text, i));
  return made([&] { return std::make_unique<CharVocab>(std::move(characters)); });
}

}  // namespace tg::text
