// Fuzz target for tokenizer.json. The part of the input before the first zero byte is the file. The rest is a
// string to encode. Reading throws only FormatError, and no allocation exceeds the file's size plus 64 KiB.
// If the file is accepted, every id belongs to a token. If a string is cut at a safe position, the ids do not
// change.
#include <algorithm>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include "io/text/unicode.h"
#include "tests/fuzz/target.h"
#include "tests/support/largest_piece.h"

namespace {

using namespace tg;

void check_encoding(const text::HfTokenizer& tokenizer, std::string_view text) {
  const std::vector<std::int32_t> ids = tokenizer.encode_whole(text);
  for (const std::int32_t id : ids) {
    fuzz_expect(id >= 0 && id < tokenizer.size(), "ids are below the size");
    fuzz_expect(!tokenizer.token_text(id).empty(), "ids have tokens");
  }
  tokenizer.decode(ids);
  fuzz_expect(text::HfTokenizer(tokenizer.json(), "fuzz").encode_whole(text) == ids,
              "a tokenizer that is read again gives the same ids");
  const std::size_t cut = tokenizer.safe_cut(text, text.size() / 2);
  if (cut == 0) return;
  std::vector<std::int32_t> parts = tokenizer.encode(text.substr(0, cut));
  const std::vector<std::int32_t> rest = tokenizer.encode(text.substr(cut));
  parts.insert(parts.end(), rest.begin(), rest.end());
  fuzz_expect(parts == tokenizer.encode(text), "the string can be cut at safe_cut()");
}

}  // namespace

void fuzz_one(std::string_view bytes) {
  const std::size_t zero = std::min(bytes.find('\0'), bytes.size());
  std::optional<text::HfTokenizer> tokenizer;
  tg::text::char_classes(), tg::text::letter_cases();  // allocates their tables, once per process
  largest_piece = 0;
  try {
    tokenizer.emplace(std::string(bytes.substr(0, zero)), "fuzz");
  } catch (const FormatError&) {
  }
  fuzz_expect(largest_piece <= piece_bound(zero), "memory is bounded by the file's size");
  if (!tokenizer) return;
  try {
    check_encoding(*tokenizer, bytes.substr(std::min(zero + 1, bytes.size())));
  } catch (const Error&) {  // a character has no token
  }
}
