// Fuzz target for tokenizers. The part of the input before the first zero byte contains the merges of a
// checkpoint. The rest is a string to encode. The only exception is FormatError. If the merges can be loaded,
// decoding the tokens returns the string.
#include <algorithm>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/text/bpe.h>
#include <tilegrad/io/text/text.h>
#include "tests/fuzz/target.h"

namespace {

using namespace tg;

void check_round_trip(const text::Tokenizer& tokenizer, std::string_view text) {
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  fuzz_expect(
      std::all_of(ids.begin(), ids.end(), [&](std::int32_t id) { return id >= 0 && id < tokenizer.size(); }),
      "ids are below the size");
  fuzz_expect(tokenizer.decode(ids) == text, "the string round-trips");
  fuzz_expect(text::load_tokenizer(tokenizer.metadata(), "fuzz")->encode(text) == ids,
              "a tokenizer that is loaded again gives the same tokens");
}

}  // namespace

void fuzz_one(std::string_view bytes) {
  const std::size_t zero = std::min(bytes.find('\0'), bytes.size());
  const std::string_view before = bytes.substr(0, zero);
  const std::string_view text = bytes.substr(std::min(zero + 1, bytes.size()));
  try {
    check_round_trip(*text::load_tokenizer({{"tokenizer", "bpe"}, {"merges", std::string(before)}}, "fuzz"),
                     text);
  } catch (const FormatError&) {
  }
  try {
    const auto chars =
        text::load_tokenizer({{"tokenizer", "chars"}, {"characters", std::string(before)}}, "fuzz");
    check_round_trip(*chars, before);
  } catch (const FormatError&) {
  }
  check_round_trip(text::Bpe::train(text, 300), text);
}
