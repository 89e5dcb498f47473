// Fuzz target for the model and the tokenizer that a GGUF file describes. The only exception is FormatError.
// An accepted model passes its own checks. No allocation exceeds the file's size plus 64 KiB.
#include <tilegrad/core/base/error.h>
#include "io/models/gguf_metadata.h"
#include "io/text/unicode.h"
#include "tests/fuzz/target.h"
#include "tests/support/largest_piece.h"

namespace {

using namespace tg;

void read_model(const io::Gguf& file) {
  try {
    io::read_gguf_config(file).model.check();
  } catch (const FormatError&) {
  }
}

void read_tokenizer(const io::Gguf& file) {
  try {
    const auto tokenizer = io::read_gguf_tokenizer(file);
    if (!tokenizer) return;
    for (std::int32_t id = 0; id < tokenizer->size(); ++id) tokenizer->token_text(id);
  } catch (const FormatError&) {
  }
}

}  // namespace

void fuzz_one(std::string_view bytes) {
  tg::text::char_classes(), tg::text::letter_cases();  // allocates their tables, once per process
  largest_piece = 0;
  try {
    const io::Gguf file(bytes, "fuzz");
    read_model(file);
    read_tokenizer(file);
  } catch (const FormatError&) {
  }
  fuzz_expect(largest_piece <= piece_bound(bytes.size()), "memory is bounded by the file's size");
}
