// Byte-pair encoding: the table of merges, encoding and decoding. Training is in bpe_train.cpp.
#include <tilegrad/io/text/bpe.h>

#include <bit>
#include <charconv>
#include <cstring>

#include <tilegrad/core/base/error.h>

namespace tg::text {
namespace {

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

// The words that one call of encode() has met, with their tokens, so that each is merged once.
class WordCache {
 public:
  struct Entry {
    const char* at = nullptr;
    std::uint32_t length = 0, first = 0, count = 0;  // tokens first … first + count − 1 of the pool
  };

  WordCache() : entries_(1 << 12) {}

  // The word's place: its entry, or an empty one to be filled with fill().
  Entry& find(std::string_view word) {
    std::size_t i = hash(word) & (entries_.size() - 1);
    while (entries_[i].at != nullptr && !same(entries_[i], word)) i = (i + 1) & (entries_.size() - 1);
    return entries_[i];
  }
  void fill(Entry& entry, std::string_view word, std::span<const std::int32_t> tokens) {
    if (used_ == most) return;
    entry = {word.data(), static_cast<std::uint32_t>(word.size()), static_cast<std::uint32_t>(pool_.size()),
             static_cast<std::uint32_t>(tokens.size())};
    pool_.insert(pool_.end(), tokens.begin(), tokens.end());
    if (2 * ++used_ > entries_.size()) grow();
  }
  std::span<const std::int32_t> tokens(const Entry& entry) const {
    return std::span(pool_).subspan(entry.first, entry.count);
  }

 private:
  static constexpr std::size_t most = 1 << 18;  // enough for one text; further words are merged each time

  static bool same(const Entry& entry, std::string_view word) {
    return entry.length == word.size() && std::memcmp(entry.at, word.data(), word.size()) == 0;
  }
  static std::size_t hash(std::string_view word) {
    std::uint64_t h = word.size();
    const char* at = word.data();
    for (std::size_t left = word.size(); left > 0;) {
      std::uint64_t chunk = 0;
      const std::size_t n = left < 8 ? left : 8;
      std::memcpy(&chunk, at, n);
      h = (h ^ chunk) * 0x9e3779b97f4a7c15u;
      h ^= h >> 29;
      at += n, left -= n;
    }
    return h * 0xbf58476d1ce4e5b9u >> 32;
  }
  void grow() {
    std::vector<Entry> old(2 * entries_.size());
    old.swap(entries_);
    for (const Entry& e : old)
      if (e.at != nullptr) find({e.at, e.length}) = e;
  }

  std::vector<Entry> entries_;
  std::vector<std::int32_t> pool_;
  std::size_t used_ = 0;
};

}  // namespace

Bpe::Bpe(std::vector<Merge> merges) : merges_(std::move(merges)) {
  if (size() > max_vocabulary)
    throw FormatError("[bpe] " + std::to_string(size()) + " tokens, expected at most " +
                      std::to_string(max_vocabulary));
  const std::size_t count = std::bit_ceil(2 * merges_.size() + 2);
  slots_.resize(count);
  shift_ = 64 - std::countr_zero(count);
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
    Slot& slot = slots_[slot_of(pair_key(left, right))];
    if (slot.pair != Slot::empty) throw FormatError(who + "occurs twice");
    slot = {pair_key(left, right), token};
    bytes_ += std::string(bytes(left)) + std::string(bytes(right));
    from_.push_back(static_cast<std::uint32_t>(bytes_.size()));
  }
}

std::size_t Bpe::slot_of(std::uint64_t pair) const {
  std::size_t i = pair * 0x9e3779b97f4a7c15u >> shift_;
  while (slots_[i].pair != pair && slots_[i].pair != Slot::empty) i = (i + 1) & (slots_.size() - 1);
  return i;
}

std::int32_t Bpe::merged(std::int32_t left, std::int32_t right) const {
  return slots_[slot_of(pair_key(left, right))].token;
}

std::string_view Bpe::bytes(std::int32_t id) const {
  detail::check_id(id, static_cast<std::int64_t>(from_.size()) - 1);
  const auto i = static_cast<std::size_t>(id);
  return std::string_view(bytes_).substr(from_[i], from_[i + 1] - from_[i]);
}

// Applies the earliest possible merge at its first position, until none is possible: the order of training.
std::size_t Bpe::encode_word(std::string_view word, std::int32_t* out) const {
  constexpr std::int32_t none = max_vocabulary;
  std::int32_t made[max_word_bytes];  // made[i]: what tokens i and i + 1 make
  std::size_t n = word.size();
  for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<unsigned char>(word[i]);
  const auto look = [&](std::size_t i) {
    const std::int32_t token = i + 1 < n ? merged(out[i], out[i + 1]) : -1;
    made[i] = token < 0 ? none : token;
  };
  for (std::size_t i = 0; i < n; ++i) look(i);
  for (;;) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < n; ++i)
      if (made[i] < made[best]) best = i;
    if (made[best] == none) return n;
    out[best] = made[best];
    for (std::size_t i = best + 1; i + 1 < n; ++i) out[i] = out[i + 1], made[i] = made[i + 1];
    --n;
    look(best);
    if (best > 0) look(best - 1);
  }
}

std::vector<std::int32_t> Bpe::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 2);
  WordCache cache;
  std::int32_t tokens[max_word_bytes];
  for (std::size_t i = 0, end = 0; i < text.size(); i = end) {
    end = word_end(text, i);
    const std::string_view word = text.substr(i, end - i);
    WordCache::Entry& entry = cache.find(word);
    if (entry.at != nullptr) {
      const auto known = cache.tokens(entry);
      ids.insert(ids.end(), known.begin(), known.end());
      continue;
    }
    const std::size_t n = encode_word(word, tokens);
    ids.insert(ids.end(), tokens, tokens + n);
    cache.fill(entry, word, {tokens, n});
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
  return {{"tokenizer", "bpe"}, {"merges", lines}};
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
