// Converts tokens to text as they are generated: complete characters only, up to a stop string.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/io/text/tokenizer.h>

namespace tg::text {

// The results of add() and finish(), concatenated, are the text of all tokens, byte for byte. If the text
// contains a stop string, they end before it. The result does not depend on how the text is divided into
// tokens.
//
// If the text contains several stop strings, the one that ends first is used. If several end at the same
// byte, the longest one is used. A stop string may begin and end within tokens and within characters.
//
// A copy continues independently.
class TextStream {
 public:
  // `tokenizer` must outlive the stream. Throws Error for an empty stop string.
  explicit TextStream(const Tokenizer& tokenizer, const std::vector<std::string>& stops = {});

  // Adds a token and returns the part of the text to show now, perhaps nothing. Two parts are held back: the
  // longest tail that begins a stop string, and before it an incomplete character (at most 3 bytes). Bytes
  // that are not UTF-8 are passed on unchanged. When a stop string is complete, add() returns the rest of the
  // text before it. Later calls return nothing. Throws Error for an id that the tokenizer lacks, and after
  // finish().
  std::string add(std::int32_t token);

  // Whether the text contained a stop string.
  bool stopped() const { return !stop_.empty(); }
  // The stop string that was found; empty if none was.
  const std::string& stop() const { return stop_; }

  // Ends the text and returns the bytes that were held back, including an incomplete character. A file thus
  // contains every byte of the text; a terminal shows a replacement character. Throws Error if called twice.
  std::string finish();

 private:
  // Matches one stop string incrementally [Knuth, Morris, Pratt, Pattern matching].
  struct Match {
    std::string stop;
    // Element n − 1 is for the first n bytes of `stop`. It is the length of their longest proper prefix that
    // is also a suffix of them.
    std::vector<std::size_t> shorter;
    std::size_t matched = 0;  // length of the longest prefix of `stop` that ends the text so far

    explicit Match(const std::string& text);
    void follow(char byte);
  };

  void check_open(const char* what) const;

  const Tokenizer* tokenizer_;
  std::vector<Match> matches_;  // longest stop string first
  std::string held_;            // the end of the text, not yet returned
  std::string stop_;
  bool finished_ = false;
};

}  // namespace tg::text
