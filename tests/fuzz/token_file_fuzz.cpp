// Fuzz target for token files: header, tokenizer and ids. The only exception is FormatError. The ids of an
// accepted file end at the end of the file.
#include <algorithm>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/text/token_file.h>
#include "tests/fuzz/target.h"

void fuzz_one(std::string_view bytes) {
  using namespace tg;
  try {
    const text::TokenHeader header = text::parse_token_header(bytes, "fuzz");
    fuzz_expect(header.begin + header.count * static_cast<std::uint64_t>(header.bytes_each) == bytes.size(),
                "ids end at the end of the file");
    const auto tokenizer = text::load_tokenizer(header.metadata, "fuzz");
    const text::TokenView view(bytes.data() + header.begin, static_cast<std::size_t>(header.count),
                               header.bytes_each, tokenizer->size(), "fuzz");
    std::vector<std::int32_t> ids(view.size());
    view.copy(0, ids);
    fuzz_expect(std::all_of(ids.begin(), ids.end(),
                            [&](std::int32_t id) { return id >= 0 && id < tokenizer->size(); }),
                "ids are below the vocabulary");
    tokenizer->decode(ids);
  } catch (const FormatError&) {
  }
}
