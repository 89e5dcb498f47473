// Fuzz target of config.json of Hugging Face folders. FormatError is the only way out; what is accepted is a
// model that passes its own checks, its settings come back from metadata, and a config.json that is written
// of it says the same. No piece of memory is asked for that is larger than the file and 64 KiB.
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
  fuzz_expect(io::to_metadata(io::model_config(saved, "fuzz")) == saved, "settings come back");
  io::HfConfig out;
  try {
    out = io::hf_config_for(config.model, "fuzz", config.family);
  } catch (const FormatError&) {  // what the reader takes and the writer has no words for
    return;
  }
  out.end_tokens = config.end_tokens, out.start_token = config.start_token;
  const io::HfConfig again = io::parse_hf_config(io::hf_config_json(out, bf16), "fuzz");
  fuzz_expect(io::is_config_of(again, config.model), "the model comes back");
  fuzz_expect(again.end_tokens == config.end_tokens && again.start_token == config.start_token,
              "ids come back");
}

}  // namespace

void fuzz_one(std::string_view bytes) {
  largest_piece = 0;
  parse_and_compare(bytes);
  fuzz_expect(largest_piece <= piece_bound(bytes.size()), "memory is bounded by the file's size");
}
