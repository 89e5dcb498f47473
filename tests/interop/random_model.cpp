// Writes small random models and prints their logits, for tests/interop/run_in_llama_cpp.py.
//
//   random_model make CONFIG.JSON FOLDER        writes a Hugging Face folder of a model with this config.json
//   random_model logits MODEL CONTEXT TOKEN …   prints the logits after each token, one line each
//
// MODEL is a folder or a GGUF file. CONTEXT is PretrainedOptions::context.
#include <cmath>
#include <cstdio>
#include <random>
#include <string_view>

#include <tilegrad/core/base/error.h>
#include <tilegrad/core/compile/compile.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/models/pretrained.h>
#include <tilegrad/ops/ops.h>
#include "io/models/hf_config.h"

namespace {

using namespace tg;

// Weights are large enough that every part of the model affects the logits.
void make_random(const std::vector<Parameter>& parameters, bool plus_one) {
  std::mt19937 draw(7);
  std::normal_distribution<double> normal;
  for (Parameter p : parameters) {
    const bool is_gain =
        p.name().find("norm") != std::string::npos || p.name().find("ln_") != std::string::npos;
    const double mean = is_gain && p.name().ends_with("weight") && !plus_one ? 1 : 0;
    Array values(p.shape(), f32);
    for (std::int64_t i = 0; i < values.numel(); ++i) values.set(i, mean + 0.3 * normal(draw));
    p.write(values);
  }
}

void make(const std::string& config_file, const std::string& folder) {
  const std::string text = io::read_file(config_file, "random_model");
  const io::HfConfig config = io::parse_hf_config(text, "[random_model] " + config_file);
  nn::Params params;
  const nn::Model model(params, config.model);
  make_random(params.all(), config.family.starts_with("gemma"));
  nn::Pretrained whole{{.folder = folder, .family = config.family, .config = config.model}, model};
  whole.info.files["config.json"] = text;
  nn::save_pretrained(folder, whole);
}

void print_logits(const std::string& path, std::int64_t context, const std::vector<std::int32_t>& tokens) {
  const nn::Pretrained model = nn::from_pretrained(path, Device::cpu(), {.context = context});
  Graph graph;
  const auto length = static_cast<std::int64_t>(tokens.size());
  const Tensor input = graph.input("tokens", {1, length}, i32);
  const Tensor logits = model.model(input);
  Program program = compile(graph, {logits});
  Array ids({1, length}, i32);
  for (std::int64_t i = 0; i < length; ++i) ids.set(i, tokens[static_cast<std::size_t>(i)]);
  program.run({{input, ids}});
  const Array values = program.fetch(logits);
  const std::int64_t vocabulary = values.shape()[2];
  for (std::int64_t i = 0; i < values.numel(); ++i)
    std::printf("%.9g%c", values.at(i), (i + 1) % vocabulary == 0 ? '\n' : ' ');
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string_view what = argc < 4 ? "" : argv[1];
    if (what == "make" && argc == 4) {
      make(argv[2], argv[3]);
    } else if (what == "logits" && argc > 4) {
      std::vector<std::int32_t> tokens;
      for (int i = 4; i < argc; ++i) tokens.push_back(std::stoi(argv[i]));
      print_logits(argv[2], std::stoll(argv[3]), tokens);
    } else {
      return 2;
    }
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
