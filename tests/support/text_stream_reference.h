// A reference implementation of TextStream. It processes the complete output in quadratic time.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/text/tokenizer.h>

namespace tg::testing {

// A tokenizer. Its ids are indices into `pieces`. Only decode() is supported.
class PieceTokenizer final : public text::Tokenizer {
 public:
  explicit PieceTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}

  std::string_view kind() const override { return "pieces"; }
  std::string_view unit() const override { return "piece"; }
  std::int64_t size() const override { return static_cast<std::int64_t>(pieces_.size()); }
  std::vector<std::int32_t> encode(std::string_view) const override { throw Error("[encode] pieces"); }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      text::detail::check_id(id, size());
      text += pieces_[static_cast<std::size_t>(id)];
    }
    return text;
  }
  io::Metadata metadata() const override { return {}; }

 private:
  std::vector<std::string> pieces_;
};

struct StoppedText {
  std::string text,
      stop;  // the text before the stop string, and the stop string or ""
};

// Finds the stop string that ends first. If several stop strings end at the same byte, finds the longest of
// them.
inline StoppedText stopped_text(std::string_view text, const std::vector<std::string>& stops) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::string_view longest;
    for (const std::string& stop : stops)
      if (text.substr(0, end).ends_with(stop) && stop.size() > longest.size()) longest = stop;
    if (!longest.empty()) return {std::string(text.substr(0, end - longest.size())), std::string(longest)};
  }
  return {std::string(text), {}};
}

// Returns whether the bytes are the beginning of an incomplete UTF-8 character [RFC 3629 §4].
inline bool begins_character(std::string_view s) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
  if (s.empty()) return false;
  const unsigned lead = byte(0);
  const std::size_t length = lead >= 0xc2 && lead <= 0xdf   ? 2
                             : lead >= 0xe0 && lead <= 0xef ? 3
                             : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                            : 0;
  if (s.size() >= length) return false;
  for (std::size_t i = 1; i < s.size(); ++i) {
    unsigned least = 0x80, most = 0xbf;
    if (i == 1 && lead == 0xe0) least = 0xa0;
    if (i == 1 && lead == 0xed) most = 0x9f;
    if (i == 1 && lead == 0xf0) least = 0x90;
    if (i == 1 && lead == 0xf4) most = 0x8f;
    if (byte(i) < least || byte(i) > most) return false;
  }
  return true;
}

// Returns the number of bytes that can be shown, for a text without a stop string.
inline std::size_t shown_bytes(std::string_view text, const std::vector<std::string>& stops) {
  std::size_t held = 0;
  for (const std::string& stop : stops)
    for (std::size_t n = 1; n < stop.size(); ++n)
      if (text.ends_with(std::string_view(stop).substr(0, n))) held = std::max(held, n);
  const std::string_view rest = text.substr(0, text.size() - held);
  for (std::size_t n = 1; n <= rest.size(); ++n)
    if (begins_character(rest.substr(rest.size() - n))) return rest.size() - n;
  return rest.size();
}

}  // namespace tg::testing
