#include "tools/bench/measured_step.h"

#include <algorithm>

#include <tilegrad/core/report/profile.h>
#include <tilegrad/core/run/cost.h>
#include <tilegrad/nn/models/model.h>
#include <tilegrad/nn/training/training.h>
#include "core/compile/reduced_chains.h"
#include "tools/batch_room.h"
#include "tools/model_parts.h"
#include "tools/train_report.h"

namespace tg::bench {

namespace {

constexpr std::string_view gradient_path = "optimizer.grad.";

// The path of the layer, also of a step of its gradient: "transformer.h.0.attn" of
// "optimizer.grad.transformer.h.0.attn/flash_attn_backward".
std::string_view layer_of(const Step& s) {
  std::string_view path(s.name);
  path = path.substr(0, path.rfind('/'));
  return path.starts_with(gradient_path) ? path.substr(gradient_path.size()) : path;
}

// The head's products belong to the whole model, to the embedding that it shares, or to lm_head.
bool is_of_head(const Step& s) {
  return layer_of(s).find('.') == std::string_view::npos || part_of(s.name) == "embeddings";
}

// By the file of ops/ that defines an op.
constexpr std::pair<std::string_view, Family> families[] = {{"matmul.cpp", Family::products},
                                                            {"flash_attn.cpp", Family::attention},
                                                            {"norm.cpp", Family::norms},
                                                            {"cross_entropy.cpp", Family::head},
                                                            {"matmul_in_units.cpp", Family::head},
                                                            {"linear_cross_entropy.cpp", Family::head},
                                                            {"copy.cpp", Family::casts},
                                                            {"concat.cpp", Family::casts},
                                                            {"index.cpp", Family::embedding},
                                                            {"gather.cpp", Family::embedding},
                                                            {"index_assign.cpp", Family::embedding},
                                                            {"rope.cpp", Family::embedding}};

Family family_of(const Op& op) {
  std::string_view file = op.where.file_name();
  file = file.substr(file.find_last_of('/') + 1);
  for (const auto& [name, family] : families)
    if (name == file) return family;
  return Family::rest;
}

void check_room(const nn::LanguageModel& model, const optim::Optimizer& optimizer,
                train::ProgramOptions options) {
  options.plan_only = true;
  check_batch(model.device(), options.batch, [&](std::int64_t batch) {
    options.batch = batch;
    const MemoryReport m = train::TrainingProgram(model, optimizer, options).memory();
    return m.peak() - m.parameters;
  });
}

}  // namespace

const char* name_of(Family family) {
  constexpr const char* names[family_count] = {"matrix products",   "attention",    "norms",
                                               "head and loss",     "other chains", "casts and copies",
                                               "embedding, rotary", "optimizer",    "rest"};
  return names[static_cast<std::size_t>(family)];
}

Family family_of(const Step& s) {
  if (s.name.starts_with("optimizer/")) return Family::optimizer;
  if (const FusedAttrs* chain = chain_of(*s.op, s.attrs)) {
    const auto moves = [](const auto& i) { return family_of(*i.op) == Family::casts; };
    return s.op == &fused_op && std::ranges::all_of(chain->code, moves) ? Family::casts : Family::chains;
  }
  const Family family = family_of(*s.op);
  return family == Family::products && is_of_head(s) ? Family::head : family;
}

std::vector<FamilyTime> by_family(std::span<const Step> steps, std::span<const double> seconds) {
  std::vector<FamilyTime> sums(family_count);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    FamilyTime& sum = sums[static_cast<std::size_t>(family_of(steps[i]))];
    sum.seconds += seconds[i], ++sum.steps;
  }
  return sums;
}

std::string ModelFlops::formula() const {
  const auto whole = [](double x) { return grouped(std::llround(x)); };
  return "6 · " + whole(weights) + " weights · " + whole(tokens) + " tokens + 3 · " +
         short_number(attention * 1e-9) + " GFLOP of attention (causal)";
}

ModelFlops model_flops(const nn::LanguageModel& model, std::int64_t batch) {
  train::EvaluationProgram evaluation(model, {.batch = batch, .plan_only = true});
  ModelFlops f{.tokens = static_cast<double>(batch * model.context)};
  for (const Step& s : evaluation.program().steps()) {
    if (s.op->product) f.weights += cost_of(s).flops / (2 * f.tokens);
    if (attention_of(*s.op, s.attrs)) f.attention += cost_of(s).flops;
  }
  return f;
}

MeasuredStep measure_step(const Settings& settings, const Machine& machine) {
  const TrainSettings& t = settings.train;
  const nn::ModelConfig& config = *t.model;
  const auto bytes = static_cast<double>(config.parameters()) * static_cast<double>(size_of(f32));
  check_memory(settings.device, 3 * bytes, "the model with its optimizer");
  nn::Params params(weights_seed, f32, settings.device);
  const nn::Model model(params, config);
  optim::AdamW::Options adamw;
  if (settings.dtype == f16) adamw.loss_scale = optim::LossScale{};
  const optim::AdamW optimizer(params.all(), adamw);
  const train::ProgramOptions options{.batch = t.batch,
                                      .threads = settings.threads,
                                      .precision = settings.precision(),
                                      .recompute = t.recompute,
                                      .memory_budget = t.budget};
  check_room(model, optimizer, options);
  train::TrainingProgram training(model, optimizer, options);
  MeasuredStep m{.parameters = params.count(),
                 .memory = training.memory(),
                 .loss_chunks = training.loss_chunks(),
                 .flops = model_flops(model, t.batch)};
  for (const Parameter& p : params.all()) m.weights += p.bytes();
  const TrainBatch data(t.batch, config);
  const auto start = [&] { return training.start(data.tokens, data.targets, bench_learning_rate); };
  const auto first = training.result(start());
  m.first = {first.loss, first.grad_norm, training.result(start()).loss};
  m.times = time_steps(training, data, settings.threads, settings, machine);
  // About as long as the steps that were timed.
  const int runs = std::clamp(static_cast<int>(settings.seconds / m.times.median), 3, 50);
  std::vector<double> seconds;
  for (const StepTime& s : profile(training.program(), {}, runs, start).steps) seconds.push_back(s.seconds);
  m.families = by_family(training.program().steps(), seconds);
  m.picture = step_picture(training.program(), seconds);
  return m;
}

}  // namespace tg::bench
