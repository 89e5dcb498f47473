#include <tilegrad/io/text/text_stream.h>

#include <algorithm>
#include <utility>

#include <tilegrad/core/base/error.h>
#include "io/files/utf8.h"

namespace tg::text {

TextStream::Match::Match(const std::string& text) : stop(text) {
  shorter.push_back(0);
  for (std::size_t i = 1; i < stop.size(); ++i) {
    follow(stop[i]);
    shorter.push_back(matched);
  }
  matched = 0;
}

void TextStream::Match::follow(char byte) {
  while (matched > 0 && stop[matched] != byte) matched = shorter[matched - 1];
  if (stop[matched] == byte) ++matched;
}

TextStream::TextStream(const Tokenizer& tokenizer, const std::vector<std::string>& stops)
    : tokenizer_(&tokenizer) {
  for (const std::string& stop : stops) {
    if (stop.empty()) throw Error("[text_stream] a stop string is empty, expected one byte or more");
    matches_.emplace_back(stop);
  }
  std::ranges::stable_sort(matches_, std::ranges::greater{}, [](const Match& m) { return m.stop.size(); });
}

void TextStream::check_open(const char* what) const {
  if (finished_) throw Error(std::string("[text_stream] ") + what + " after finish()");
}

std::string TextStream::add(std::int32_t token) {
  check_open("add()");
  const std::string bytes = tokenizer_->continuation(token);
  if (stopped()) return {};
  for (const char byte : bytes) {
    held_ += byte;
    for (Match& m : matches_) m.follow(byte);
    const auto met =
        std::ranges::find_if(matches_, [](const Match& m) { return m.matched == m.stop.size(); });
    if (met == matches_.end()) continue;
    stop_ = met->stop;
    held_.resize(held_.size() - stop_.size());
    return std::exchange(held_, {});
  }
  std::size_t begins_stop = 0;
  for (const Match& m : matches_) begins_stop = std::max(begins_stop, m.matched);
  const std::string_view rest = std::string_view(held_).substr(0, held_.size() - begins_stop);
  const std::size_t shown = rest.size() - io::utf8_incomplete_bytes(rest);
  std::string piece = held_.substr(0, shown);
  held_.erase(0, shown);
  return piece;
}

std::string TextStream::finish() {
  check_open("finish()");
  finished_ = true;
  return std::exchange(held_, {});
}

}  // namespace tg::text
