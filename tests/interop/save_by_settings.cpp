// Reads a model from a folder and writes a new Hugging Face folder, using only the model's settings.
// tests/interop/open_exported.py runs this program.
//
//   save_by_settings FOLDER OUT first | same
//
// With "first", the new folder has the first family that computes the same results, as for a model that was
// created here. With "same", it has the family of the original folder.
#include <cstdio>
#include <string_view>

#include <tilegrad/core/base/error.h>
#include "io/models/hf_writer.h"

int main(int argc, char** argv) {
  using namespace tg;
  if (argc != 4) return 2;
  try {
    io::ModelSource source = io::source_of_folder(argv[1]);
    const std::string family = io::hf_config_of(source, argv[1]).family;
    source.files.clear();
    if (argv[3] == std::string_view("same"))
      source.files["config.json"] =
          io::hf_config_json(io::hf_config_for(source.config, argv[1], family), source.dtypes()[0]);
    io::HfWriter(source, {}).write(argv[2]);
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
