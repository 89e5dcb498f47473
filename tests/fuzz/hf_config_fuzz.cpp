// Fuzz target of config.json of Hugging Face folders. FormatError is the only way out; what is accepted is a
// model that passes its own checks, and its settings come back from metadata.
#include <tilegrad/io/checkpoints/model_file.h>

#include <tilegrad/core/base/error.h>
#include "io/interop/hf_config.h"
#include "tests/fuzz/target.h"

using namespace tg;

void fuzz_one(std::string_view bytes) {
  io::HfConfig config;
  try {
    config = io::parse_hf_config(bytes, "fuzz");
  } catch (const FormatError&) {
    return;
  }
  config.model.check();
  const io::Metadata saved = io::to_metadata(config.model);
  fuzz_expect(io::to_metadata(io::model_config(saved, "fuzz")) == saved, "settings come back");
}
