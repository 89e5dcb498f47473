// Byte-pair encoding: the merge table, encoding and decoding. For training, see bpe_train.cpp.
#include <tilegrad/io/text/bpe.h>

#include <charconv>

#include <tilegrad/core/base/error.h>
#include "io/text/merge_table.h"
#include "io/text/word_cache.h"

namespace tg::text {

Bpe::Bpe(std::vector<Merge> merges, WordRule words) : merges_(std::move(merges)), words_(words) {
  if (words != WordRule::gpt2 && words != WordRule::bytes)
    throw Error("[bpe] got word rule " + std::to_string(static_cast<int>(words)) +
                ", expected gpt2 or bytes");
  if (size() > max_vocabulary)
    throw FormatError("[bpe] " + std::to_string(size()) + " tokens, expected at most " +
                      std::to_string(max_vocabulary));
  const auto table = std::make_shared<MergeTable>(merges_.size());
  for (int byte = 0; byte < 256; ++byte) bytes_ += static_cast<char>(byte);
  for (std::uint32_t i = 0; i <= 256; ++i) from_.push_back(i);
  for (std::size_t k = 0; k < merges_.size(); ++k) {
    const auto [left, right] = merges_[k];
    const auto token = static_cast<std::int32_t>(256 + k);
    const std::string who =
        "[bpe] merge " + std::to_string(k) + " (" + std::to_string(left) + " " + std::to_string(right) + ") ";
    if (left < 0 || right < 0 || left >= token || right >= token)
      throw FormatError(who + "names a token that does not exist before it, expected 0 to " +
                        std::to_string(token - 1));
    const std::size_t length = bytes(left).size() + bytes(right).size();
    if (length > max_word_bytes)
      throw FormatError(who + "makes a token of " + std::to_string(length) + " bytes, expected at most " +
                        std::to_string(max_word_bytes));
    if (!table->add(left, right, static_cast<std::uint32_t>(k), token))
      throw FormatError(who + "occurs twice");
    bytes_ += std::string(bytes(left)) + std::string(bytes(right));
    from_.push_back(static_cast<std::uint32_t>(bytes_.size()));
  }
  table_ = table;
}

std::string_view Bpe::bytes(std::int32_t id) const {
  detail::check_id(id, static_cast<std::int64_t>(from_.size()) - 1);
  const auto i = static_cast<std::size_t>(id);
  return std::string_view(bytes_).substr(from_[i], from_[i + 1] - from_[i]);
}

std::vector<std::int32_t> Bpe::encode(std::string_view text) const {
  std::vector<std::int32_t> ids, tokens;
  WordCache cache(text.size());
  for (std::size_t i = 0, end = 0; i < text.size(); i = end) {
    end = word_end(words_, text, i);
    const std::string_view word = text.substr(i, end - i);
    WordCache::Entry& entry = cache.find(word);
    if (entry.length != 0) {
      const auto known = cache.tokens(entry);
      ids.insert(ids.end(), known.begin(), known.end());
      continue;
    }
    tokens.clear();
    for (const char c : word) tokens.push_back(static_cast<unsigned char>(c));
    tokens.resize(table_->apply(tokens));
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    cache.fill(entry, word, tokens);
  }
  return ids;
}

std::string Bpe::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) text += bytes(id);
  return text;
}

io::Metadata Bpe::metadata() const {
  std::string lines;
  for (const auto& [left, right] : merges_)
    lines += std::to_string(left) + " " + std::to_string(right) + "\n";
  io::Metadata made{{"tokenizer", "bpe"}, {"merges", lines}};
  if (words_ == WordRule::gpt2) made["words"] = "gpt2";
  return made;
}

std::vector<Bpe::Merge> parse_merges(std::string_view text, const std::string& where) {
  std::vector<Bpe::Merge> merges;
  for (const char *at = text.data(), *end = at + text.size(); at != end;) {
    const auto refuse = [&](const char* what) {
      throw FormatError(where + ", line " + std::to_string(merges.size() + 1) + ": " + what);
    };
    if (static_cast<std::int64_t>(merges.size()) == Bpe::max_vocabulary - 256) refuse("too many merges");
    Bpe::Merge merge;
    for (std::int32_t* id : {&merge.first, &merge.second}) {
      const auto [stop, error] = std::from_chars(at, end, *id);
      const char mark = id == &merge.first ? ' ' : '\n';
      if (error != std::errc() || stop == end || *stop != mark)
        refuse("expected two token ids and a line break");
      at = stop + 1;
    }
    merges.push_back(merge);
  }
  return merges;
}

}  // namespace tg::text
