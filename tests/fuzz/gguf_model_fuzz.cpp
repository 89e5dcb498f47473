// Fuzz target of what GGUF files say: which model, by which tokenizer. FormatError is the only way out; what
// is accepted is a model that passes its own checks. No piece of memory is asked for that is larger than the
// file and 64 KiB.
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
  tg::text::char_classes(), tg::text::letter_cases();  // tables of their own, once for a process
  largest_piece = 0;
  try {
    const io::Gguf file(bytes, "fuzz");
    read_model(file);
    read_tokenizer(file);
  } catch (const FormatError&) {
  }
  fuzz_expect(largest_piece <= piece_bound(bytes.size()), "memory is bounded by the file's size");
}
