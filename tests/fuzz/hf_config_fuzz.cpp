// Fuzz target for config.json of Hugging Face folders. The only exception is FormatError. An accepted model
// passes its own checks. Its settings round-trip through metadata and through a newly written config.json. No
// allocation exceeds the file's size plus 64 KiB.
#include <tilegrad/io/checkpoints/model_file.h>

#include <tilegrad/core/base/error.h>
#include "io/models/hf_config.h"
#include "tests/fuzz/target.h"
#include "tests/support/largest_piece.h"

using namespace tg;

namespace {

void parse_and_compare(std::string_view bytes) {
  io::HfConfig config;
  try {
    config = io::parse_hf_config(bytes, "fuzz");
  } catch (const FormatError&) {
    return;
  }
  config.model.check();
  const io::Metadata saved = io::to_metadata(config.model);
  fuzz_expect(io::to_metadata(io::model_config(saved, "fuzz")) == saved, "settings round-trip");
  io::HfConfig out;
  try {
    out = io::hf_config_for(config.model, "fuzz", config.family);
  } catch (const FormatError&) {  // a model that the reader accepts but the writer cannot express
    return;
  }
  out.end_tokens = config.end_tokens, out.start_token = config.start_token;
  const io::HfConfig again = io::parse_hf_config(io::hf_config_json(out, bf16), "fuzz");
  fuzz_expect(io::is_config_of(again, config.model), "the model round-trips");
  fuzz_expect(again.end_tokens == config.end_tokens && again.start_token == config.start_token,
              "ids round-trip");
}

}  // namespace

void fuzz_one(std::string_view bytes) {
  largest_piece = 0;
  parse_and_compare(bytes);
  fuzz_expect(largest_piece <= piece_bound(bytes.size()), "memory is bounded by the file's size");
}
