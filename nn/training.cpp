#include "nn/training.h"

#include "ops/ops.h"

namespace tg {

namespace {

Tensor token_input(Graph& graph, const char* name, const Model& model, const ProgramOptions& options) {
  return graph.input(name, {options.batch, model.config().context}, i32);
}

Tensor model_logits(const Model& model, const Tensor& tokens, Mode mode, Precision precision) {
  const Autocast autocast(tokens.graph(), precision);
  return model(tokens, mode);
}

CompileOptions compile_options(const ProgramOptions& o) {
  return {.threads = o.threads,
          .tf32 = o.precision == Precision::tf32,
          .verify = o.verify,
          .plan_only = o.plan_only};
}

std::vector<Tensor> results_of(const Tensor& loss, const AdamW::Update& update) {
  std::vector<Tensor> results{loss, update.grad_norm, update.skipped};
  if (update.loss_scale.defined()) results.insert(results.end(), {update.overflowed, update.loss_scale});
  return results;
}

Program compiled(Graph& graph, const std::vector<Tensor>& results, const AdamW::Update& update,
                 const ProgramOptions& o) {
  CompileOptions options = compile_options(o);
  options.assign = update.assign;
  return compile(graph, results, options);
}

}  // namespace

TrainingProgram::TrainingProgram(const Model& model, const AdamW& optimizer, const ProgramOptions& options,
                                 std::uint64_t seed)
    : tokens_(token_input(graph_, "tokens", model, options)),
      targets_(token_input(graph_, "targets", model, options)),
      loss_(cross_entropy(model_logits(model, tokens_, Mode::train, options.precision), targets_)),
      update_(optimizer.minimize(loss_)),
      results_(results_of(loss_, update_)),
      program_(compiled(graph_, results_, update_, options)) {
  program_.seed(seed);
}

Pending TrainingProgram::start(const std::vector<std::int32_t>& tokens,
                               const std::vector<std::int32_t>& targets, double learning_rate) {
  const auto rate = static_cast<float>(learning_rate);
  program_.run(
      {{tokens_, tokens}, {targets_, targets}, {update_.learning_rate, std::span<const float>(&rate, 1)}});
  return program_.fetch_later(results_);
}

TrainingProgram::Result TrainingProgram::result(const Pending& step) const {
  Result result{static_cast<float>(step.number(loss_)), step.item<float>(update_.grad_norm),
                static_cast<std::int64_t>(step.item<float>(update_.skipped))};
  if (update_.loss_scale.defined()) {
    result.overflowed = static_cast<std::int64_t>(step.item<float>(update_.overflowed));
    result.loss_scale = step.item<float>(update_.loss_scale);
  }
  return result;
}

EvaluationProgram::EvaluationProgram(const Model& model, const ProgramOptions& options)
    : tokens_(token_input(graph_, "tokens", model, options)),
      targets_(token_input(graph_, "targets", model, options)),
      logits_(model_logits(model, tokens_, Mode::evaluate, options.precision)),
      loss_(cross_entropy(logits_, targets_)),
      predictions_(options.predictions ? argmax(logits_, {-1}) : Tensor()),
      results_(options.predictions ? std::vector{loss_, predictions_} : std::vector{loss_}),
      program_(compile(graph_, results_, compile_options(options))) {}

Pending EvaluationProgram::start(const std::vector<std::int32_t>& tokens,
                                 const std::vector<std::int32_t>& targets) {
  program_.run({{tokens_, tokens}, {targets_, targets}});
  return program_.fetch_later(results_);
}

TrainingMemory plan_memory(const Model& model, const AdamW& optimizer, ProgramOptions options) {
  options.plan_only = true;
  return {TrainingProgram(model, optimizer, options).program().memory(),
          EvaluationProgram(model, options).program().memory()};
}

}  // namespace tg
