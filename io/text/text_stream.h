// The text of tokens as they are generated: whole characters, up to a stop string.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/io/text/tokenizer.h>

namespace tg::text {

// The pieces that add() and finish() return, one after another, are the text of all tokens, or if it contains
// a stop string the text before it, byte for byte, however the text is divided into tokens.
//
// Of several stop strings in a text, the one that ends first counts, and of those that end at the same byte
// the longest. A stop string may begin and end within tokens and within characters.
//
// A copy continues the text on its own.
class TextStream {
 public:
  // `tokenizer` must outlive the stream. Error for an empty stop string.
  explicit TextStream(const Tokenizer& tokenizer, const std::vector<std::string>& stops = {});

  // What can be shown after this token, perhaps nothing. Held back are the longest tail that begins a stop
  // string and, before it, a character of which bytes are missing (3 bytes at most). Bytes that are no UTF-8
  // are passed on as they are. When a stop string has been met, all of the text before it is returned, and
  // further tokens return nothing. Error for an id that the tokenizer does not have, and after finish().
  std::string add(std::int32_t token);

  bool stopped() const { return !stop_.empty(); }
  const std::string& stop() const { return stop_; }  // the stop string that was met; empty: none

  // Ends the text and returns what was held back, an incomplete character as it is: a file then has every
  // byte of the text, and a terminal shows a replacement sign in its place. Error if called twice.
  std::string finish();

 private:
  // How much of a stop string the text ends with, found by [Knuth, Morris, Pratt, Pattern matching].
  struct Match {
    std::string stop;
    std::vector<std::size_t> shorter;  // [n − 1]: the longest m < n for which its first n bytes end with its
                                       // first m
    std::size_t matched = 0;  // the text ends with its first `matched` bytes, and no more

    explicit Match(const std::string& text);
    void follow(char byte);
  };

  void check_open(const char* what) const;

  const Tokenizer* tokenizer_;
  std::vector<Match> matches_;  // longest stop string first
  std::string held_;            // the end of the text, not returned yet
  std::string stop_;
  bool finished_ = false;
};

}  // namespace tg::text
