// Compares the time and memory of two fine-tuning steps of a GPT: with all parameters, and with LoRA.
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/lora.h>
#include <tilegrad/nn/models/model.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include "tools/bench/measure.h"
#include "tools/bench/report.h"

namespace tg::bench {

namespace {

struct Way {
  std::string name;
  bool is_whole = false;                  // train all parameters
  std::vector<std::string> targets = {};  // layers with adapters
};

struct StepCost {
  double seconds = Row::none, mib = Row::none;
};

// Time and memory of a step for a GPT of these sizes: layers, heads, width, context, batch, vocabulary, rank.
// In bf16 and f16, a model without adapters has f32 weights, which each step casts. A model with adapters has
// weights in the 16-bit type.
StepCost step_cost(const Way& way, const Sizes& sizes, const Report& report) {
  const Settings& settings = report.settings;
  nn::ModelConfig config =
      config_of(nn::Gpt{.activation = "gelu_tanh"}, Sizes{sizes[0], sizes[1], sizes[2], sizes[3], sizes[5]});
  config.bias = true;
  nn::Params params(0, way.is_whole ? f32 : settings.dtype, settings.device);
  nn::Model model(params, config);
  if (!way.is_whole) nn::add_lora(model, {.rank = sizes[6], .targets = way.targets});
  const optim::AdamW optimizer(model.parameters());
  train::TrainingProgram training(
      model, optimizer, {.batch = sizes[4], .threads = settings.threads, .precision = settings.precision()});
  const TrainBatch data(sizes[4], config);
  training.run(data.tokens, data.targets, bench_learning_rate);
  return {time_steps(training, data, settings.threads, settings, report.machine).best,
          static_cast<double>(training.memory().peak()) / (1 << 20)};
}

}  // namespace

void run_lora(Report& report) {
  const Way ways[] = {{"all parameters", true},
                      {"LoRA, attention's input", false, {"c_attn"}},
                      {"LoRA, all linear layers", false, {}}};
  // The sizes of GPT-2 124M. On a CPU, the batch has only a few tokens.
  const Sizes sizes = report.sizes(report.settings.on_cpu() ? Sizes{12, 12, 768, 128, 1, 50257, 8}
                                                            : Sizes{12, 12, 768, 1024, 8, 50257, 8});
  StepCost whole;
  for (const Way& way : ways) {
    // The first way is always measured, because the other ways are compared with it.
    if (!way.is_whole && !report.selects(way.name)) continue;
    const StepCost cost = step_cost(way, sizes, report);
    if (way.is_whole) whole = cost;
    Row step = report.row(way.name, joined(sizes), "step"),
        memory = report.row(way.name, joined(sizes), "memory");
    step.time(cost.seconds).at(static_cast<double>(sizes[4] * sizes[3]) / cost.seconds, "tokens/s");
    memory.at(cost.mib, "MiB");
    if (!way.is_whole) {
      step.part(cost.seconds / whole.seconds, "all parameters");
      memory.part(cost.mib / whole.mib, "all parameters");
    }
    report.add_selected(step);
    report.add_selected(memory);
  }
}

}  // namespace tg::bench
