// Loads text, and implements the character vocabulary and the sampler of training batches.
#include <tilegrad/io/text/text.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>

#include <tilegrad/core/base/error.h>
#include <tilegrad/core/base/rng.h>
#include <tilegrad/io/files/file.h>
#include "io/files/utf8.h"

namespace tg::text {
namespace {

// The node number of the sampler's random stream. Graph nodes are numbered from 0 and never reach this
// number.
constexpr std::uint32_t sampler_node = 0xffffffffu;

// Returns a name such as "'é' (U+00E9)". The code point helps if the character is invisible.
std::string name_of_character(char32_t c) {
  char code[16];
  std::snprintf(code, sizeof code, "U+%04X", static_cast<unsigned>(c));
  if (c < 0x20 || (c >= 0x7f && c < 0xa0)) return code;
  std::string s = "'";
  io::utf8_append(s, c);
  return s + "' (" + code + ")";
}

}  // namespace

std::string load_text(const std::string& path) {
  std::string text = io::read_file(path, "load_text");
  if (text.empty()) throw Error("[load_text] " + path + " is empty");
  const std::size_t valid = io::utf8_valid_bytes(text);
  if (valid != text.size()) {
    char byte[8];
    std::snprintf(byte, sizeof byte, "0x%02x", static_cast<unsigned char>(text[valid]));
    throw FormatError("[load_text] " + path + " is not UTF-8: bad byte " + byte + " at offset " +
                      std::to_string(valid));
  }
  return text;
}

CharVocab::CharVocab(std::string_view text) {
  std::vector<bool> seen(0x110000);
  for (std::size_t i = 0; i < text.size();) seen[io::utf8_next(text, i)] = true;
  for (char32_t c = 0; c < seen.size(); ++c) {
    if (seen[c]) characters_.push_back(c);
  }
}

CharVocab::CharVocab(std::vector<char32_t> characters) : characters_(std::move(characters)) {
  std::sort(characters_.begin(), characters_.end());
  const auto twice = std::adjacent_find(characters_.begin(), characters_.end());
  if (twice != characters_.end()) {
    throw FormatError("[CharVocab] " + name_of_character(*twice) + " is in the vocabulary twice");
  }
  for (const char32_t c : characters_) {
    if (c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
      throw FormatError("[CharVocab] got " + std::to_string(static_cast<std::uint32_t>(c)) +
                        ", which is not a Unicode character");
  }
}

std::vector<std::int32_t> CharVocab::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t at = i;
    const char32_t c = io::utf8_next(text, i);
    const auto place = std::lower_bound(characters_.begin(), characters_.end(), c);
    if (place == characters_.end() || *place != c) {
      throw Error("[encode] character " + name_of_character(c) + " at byte " + std::to_string(at) +
                  " is not in the vocabulary of " + std::to_string(size()) + " characters");
    }
    ids.push_back(static_cast<std::int32_t>(place - characters_.begin()));
  }
  return ids;
}

std::string CharVocab::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    detail::check_id(id, size());
    io::utf8_append(text, characters_[static_cast<std::size_t>(id)]);
  }
  return text;
}

io::Metadata CharVocab::metadata() const {
  std::string all;
  for (const char32_t c : characters_) io::utf8_append(all, c);
  return {{"tokenizer", "chars"}, {"characters", all}};
}

TextSplit split_text(const TokenView& tokens) {
  const std::size_t train = tokens.size() - (tokens.size() + 9) / 10;  // ⌊9n/10⌋ without overflow of 9n
  return {tokens.part(0, train), tokens.part(train, tokens.size() - train)};
}

BatchSampler::BatchSampler(const TokenView& tokens, std::int64_t batch, std::int64_t context,
                           std::string_view what)
    : tokens_(tokens), batch_(batch), context_(context) {
  if (batch < 1 || context < 1 || batch > std::numeric_limits<std::int64_t>::max() / context) {
    throw ShapeError("[BatchSampler] got batch " + std::to_string(batch) + " and context " +
                     std::to_string(context) + ", expected at least 1, and a product of 64 bits");
  }
  if (static_cast<std::int64_t>(tokens.size()) <= context) {
    throw Error("[BatchSampler] " + std::string(what) + " has " + std::to_string(tokens.size()) +
                " tokens, expected at least context + 1 = " +
                std::to_string(static_cast<std::uint64_t>(context) + 1));
  }
}

void BatchSampler::check(std::span<const std::int32_t> x, std::span<const std::int32_t> y) const {
  const auto expected = static_cast<std::size_t>(batch_ * context_);
  if (x.size() != expected || y.size() != expected) {
    throw ShapeError("[BatchSampler] got room for " + std::to_string(x.size()) + " and " +
                     std::to_string(y.size()) +
                     " tokens, expected batch · context = " + std::to_string(expected));
  }
}

void BatchSampler::crop(std::int64_t row, std::int64_t start, std::span<std::int32_t> x,
                        std::span<std::int32_t> y) const {
  const auto at = static_cast<std::size_t>(row * context_), n = static_cast<std::size_t>(context_);
  tokens_.copy(static_cast<std::size_t>(start), x.subspan(at, n));
  tokens_.copy(static_cast<std::size_t>(start) + 1, y.subspan(at, n));
}

void BatchSampler::random(std::uint64_t seed, std::uint64_t step, std::int64_t first_row,
                          std::span<std::int32_t> x, std::span<std::int32_t> y) const {
  check(x, y);
  const std::uint64_t key = node_key(seed, step, sampler_node);
  const std::uint64_t starts = tokens_.size() - static_cast<std::uint64_t>(context_);
  for (std::int64_t b = 0; b < batch_; ++b) {
    const std::uint64_t row = static_cast<std::uint64_t>(first_row) + static_cast<std::uint64_t>(b);
    const PhiloxBlock block =
        philox({static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(row >> 32), 0, 0}, key);
    const std::uint64_t u = block[0] | std::uint64_t{block[1]} << 32;
    crop(b, static_cast<std::int64_t>(static_cast<unsigned __int128>(u) * starts >> 64), x, y);
  }
}

void BatchSampler::evaluation(std::int64_t k, std::int64_t count, std::span<std::int32_t> x,
                              std::span<std::int32_t> y) const {
  check(x, y);
  if (k < 0 || k >= count) {
    throw Error("[BatchSampler] got evaluation batch " + std::to_string(k) + " of " + std::to_string(count));
  }
  const std::int64_t last = static_cast<std::int64_t>(tokens_.size()) - context_ - 1;
  const __int128 crops = static_cast<__int128>(count) * batch_;
  for (std::int64_t b = 0; b < batch_; ++b) {
    const __int128 place = static_cast<__int128>(last) * (static_cast<__int128>(k) * batch_ + b);
    crop(b, crops == 1 ? 0 : static_cast<std::int64_t>(place / (crops - 1)), x, y);
  }
}

std::int64_t BatchSampler::evaluation_count() const {
  const std::int64_t predicted = static_cast<std::int64_t>(tokens_.size()) - 1;
  const std::int64_t crops = (predicted + context_ - 1) / context_;
  return (crops - 1) / batch_ + 1;
}

}  // namespace tg::text
