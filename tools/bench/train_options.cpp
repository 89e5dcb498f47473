// The options of a model, which `bench train` and `bench ranks` have.
#include "tools/bench/options.h"

#include <cmath>

#include "tools/bench/measure.h"
#include "tools/memory_size.h"

namespace tg::bench {

namespace {

// Options of a model and of its report.
std::vector<std::string> own_options(ModelOptions& o) {
  std::vector<std::string> names = {"architecture", "init",      "init-std",      "dropout", "vocabulary",
                                    "batch",        "recompute", "memory-budget", "peak"};
  for (const ModelOption& option : model_options(o)) names.push_back(option.name());
  return names;
}

}  // namespace

// The sizes of the model that the report named by an option is about.
std::string TrainCommandLine::take_shape(const Args& args, const std::string& report,
                                         const std::vector<std::string>& shapes) {
  if (shapes.empty()) return "";
  if (shapes.size() > 1)
    return "--shape got " + std::to_string(shapes.size()) + " sizes, expected one with --" + report;
  const std::vector<std::int64_t> sizes = parse_shape(shapes[0]);
  const std::pair<const char*, std::int64_t*> options[] = {{"layers", &model.layers},
                                                           {"heads", &model.heads},
                                                           {"width", &model.width},
                                                           {"context", &model.context},
                                                           {"batch", &settings.batch}};
  if (sizes.size() != std::size(options))
    return "--shape got '" + shapes[0] + "', expected 5 sizes joined by x";
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (args.given(options[i].first))
      return "--shape and --" + std::string(options[i].first) + " exclude each other";
    *options[i].second = sizes[i];
  }
  return "";
}

void TrainCommandLine::declare(Args& args) {
  declare_model_options(args, *this, "train: ");
  args.option("vocabulary", "N", "train: distinct tokens", vocabulary, {.min = 1, .max = 1e7});
  args.option("batch", "N", "train: rows of tokens in a step", settings.batch, {.min = 1, .max = 65536});
  args.flag("recompute", "train: keep only the input of each block for the backward pass",
            settings.recompute);
  args.option("memory-budget", "SIZE", "train: peak memory of a step, as for train --memory-budget",
              memory_budget, {.shown = "none"});
  args.option("peak", "TFLOPS",
              "train: the rate that utilisation is a share of, such as that of a data sheet", peak,
              {.min = 1e-3, .max = 1e9, .shown = "measured"});
  args.option("plot", "FILE.png",
              "also draw a picture: attention: the rates; serve: who has which part of the cache, step by "
              "step; train: the "
              "step, its kernels over time by family, and the memory in use; ranks: how the runs of --rows "
              "scale, and "
              "measure nothing",
              settings.plot, {.shown = "no picture", .suffix = ".png"});
  args.option(
      "rows", "FILE",
      "ranks: a file that --json wrote, of a run of some number of ranks; repeated, of all runs to draw",
      settings.rows, {.shown = "none"});
}

std::string TrainCommandLine::take(const Args& args, const std::string& mode,
                                   const std::vector<std::string>& shapes) {
  if (args.given("plot") && mode != "attention" && mode != "serve" && mode != "train" && mode != "ranks")
    return "--plot is an option of the modes attention, serve, train and ranks";
  std::string first;  // of its options, the first one that is given
  for (const std::string& name : own_options(*this))
    if (args.given(name) && first.empty()) first = name;
  if (mode != "train" && mode != "ranks")
    return first.empty() ? "" : "--" + first + " is an option of the modes train and ranks";
  if (args.given("rows") && mode != "ranks") return "--rows is an option of the mode ranks";
  if (mode == "ranks" && args.given("plot") != args.given("rows"))
    return "the mode ranks draws what --rows FILE and --plot FILE name together";
  if (args.given("rows")) {
    std::vector<std::string> measuring = own_options(*this);
    measuring.insert(measuring.end(), {"shape", "filter", "json"});
    for (const std::string& name : measuring)
      if (args.given(name)) return "--" + name + " and --rows, which measures nothing, exclude each other";
    return "";
  }
  for (const char* name : {"compare", "plot"})
    if (first.empty() && mode == "train" && args.given(name)) first = name;
  if (first.empty()) return "";
  if (args.given("filter")) return "--filter and --" + first + " exclude each other";
  if (mode == "ranks" && !shapes.empty()) return "--shape and --" + first + " exclude each other";
  if (std::string mistake = take_shape(args, first, shapes); !mistake.empty()) return mistake;
  if (args.given("compare") && model.dropout > 0)
    return "--compare and --dropout exclude each other: PyTorch draws other numbers";
  if (!args.given("init-std")) model.std = 0.02 * std::sqrt(768.0 / static_cast<double>(model.width));
  if (std::string mistake = take_model(args, *this); !mistake.empty()) return mistake;
  if (std::string mistake = take_bytes("memory-budget", memory_budget, settings.budget); !mistake.empty())
    return mistake;
  model.vocabulary = vocabulary;
  settings.model = model;
  settings.peak = peak * 1e12;
  return "";
}

}  // namespace tg::bench
