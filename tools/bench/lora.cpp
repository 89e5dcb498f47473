// A step of fine-tuning a GPT whole, and with LoRA: how long it takes, and how much memory it needs.
#include <string>

#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/lora.h>
#include <tilegrad/nn/models/model.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include "tools/bench/modes.h"
#include "tools/bench/step_times.h"

namespace tg::bench {

namespace {

struct Way {
  std::string name;
  bool is_whole = false;                  // all parameters are trained
  std::vector<std::string> targets = {};  // of LoRA
};

struct Cell {
  nn::ModelConfig config;
  std::int64_t batch, rank;
};

struct StepCost {
  double seconds, mib;
};

// GPT-2 of 124M parameters, on a CPU with few tokens.
std::vector<std::int64_t> usual_sizes(const Settings& settings) {
  if (settings.device.kind == Device::cpu_kind) return {12, 12, 768, 128, 1, 50257, 8};
  return {12, 12, 768, 1024, 8, 50257, 8};
}

Cell cell_of(const std::vector<std::int64_t>& s) {
  return {.config = {.architecture = nn::Gpt{.activation = "gelu_tanh"},
                     .vocabulary = s[5],
                     .context = s[3],
                     .layers = s[0],
                     .heads = s[1],
                     .width = s[2],
                     .bias = true},
          .batch = s[4],
          .rank = s[6]};
}

// In a half type a model that is trained whole has its weights in f32, which are cast in each step, and one
// with adapters has them in the half type.
StepCost step_cost(const Way& way, const Cell& cell, const Settings& settings, const Machine& machine) {
  nn::Params params(0, way.is_whole ? f32 : settings.dtype, settings.device);
  nn::Model model(params, cell.config);
  if (!way.is_whole) nn::add_lora(model, {.rank = cell.rank, .targets = way.targets});
  const optim::AdamW optimizer(model.parameters());
  train::TrainingProgram training(model, optimizer,
                                  {.batch = cell.batch,
                                   .threads = settings.threads,
                                   .precision = nn::precision_named(settings.dtype_name())});
  const TrainBatch data(cell.batch, cell.config.context, cell.config.vocabulary);
  training.run(data.tokens, data.targets, bench_learning_rate);
  return {time_steps(training, data, settings.threads, settings, machine).best,
          static_cast<double>(training.memory().peak()) / (1 << 20)};
}

}  // namespace

void run_lora(const Settings& settings, const Machine& machine, Report& report) {
  const Way ways[] = {{"all parameters", true},
                      {"LoRA, attention's input", false, {"c_attn"}},
                      {"LoRA, all linear layers", false, {}}};
  std::vector<std::vector<std::int64_t>> shapes = settings.shapes;
  if (shapes.empty()) shapes.push_back(usual_sizes(settings));
  for (const std::vector<std::int64_t>& shape : shapes) {
    const Cell cell = cell_of(shape);
    const auto tokens = static_cast<double>(cell.batch * cell.config.context);
    StepCost whole{Row::none, Row::none};
    for (const Way& way : ways) {
      // The first way is what the others are compared with.
      if (!way.is_whole && !report.selects(way.name)) continue;
      const StepCost cost = step_cost(way, cell, settings, machine);
      if (way.is_whole) whole = cost;
      if (!report.selects(way.name)) continue;
      Row step{.name = way.name,
               .shape = joined(shape),
               .dtype = settings.dtype_name(),
               .pass = "step",
               .threads = settings.threads,
               .ms = cost.seconds * 1e3,
               .rate = tokens / cost.seconds,
               .unit = "tokens/s"};
      Row memory = step;
      memory.pass = "memory", memory.ms = Row::none, memory.rate = cost.mib, memory.unit = "MiB";
      if (!way.is_whole) {
        step.share = cost.seconds / whole.seconds, memory.share = cost.mib / whole.mib;
        step.of = memory.of = "all parameters";
      }
      report.add(step);
      report.add(memory);
    }
  }
}

}  // namespace tg::bench
