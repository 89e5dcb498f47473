#include "nn/training.h"

#include "ops/ops.h"

namespace tg {

namespace {

Tensor token_input(Graph& graph, const char* name, const Gpt& model, const ProgramOptions& options) {
  return graph.input(name, {options.batch, model.config().context}, i32);
}

Tensor loss_of(const Gpt& model, const Tensor& tokens, const Tensor& targets, Mode mode,
               Precision precision) {
  const Autocast autocast(tokens.graph(), precision);
  return cross_entropy(model(tokens, mode), targets);
}

CompileOptions compile_options(const ProgramOptions& o) {
  return {.threads = o.threads, .tf32 = o.precision == Precision::tf32, .verify = o.verify};
}

Program compiled(Graph& graph, const Tensor& loss, const AdamW::Update& update, const ProgramOptions& o) {
  CompileOptions options = compile_options(o);
  options.assign = update.assign;
  std::vector<Tensor> fetch{loss, update.grad_norm, update.skipped};
  if (update.loss_scale.defined()) fetch.insert(fetch.end(), {update.overflowed, update.loss_scale});
  return compile(graph, fetch, options);
}

}  // namespace

TrainingProgram::TrainingProgram(const Gpt& model, const AdamW& optimizer, const ProgramOptions& options,
                                 std::uint64_t seed)
    : tokens_(token_input(graph_, "tokens", model, options)),
      targets_(token_input(graph_, "targets", model, options)),
      loss_(loss_of(model, tokens_, targets_, Mode::train, options.precision)),
      update_(optimizer.minimize(loss_)),
      program_(compiled(graph_, loss_, update_, options)) {
  program_.seed(seed);
}

TrainingProgram::Result TrainingProgram::run(const std::vector<std::int32_t>& tokens,
                                             const std::vector<std::int32_t>& targets, double learning_rate) {
  program_.run({{tokens_, tokens},
                {targets_, targets},
                {update_.learning_rate, std::vector<float>{static_cast<float>(learning_rate)}}});
  Result result{static_cast<float>(program_.fetch(loss_).at(0)), program_.item<float>(update_.grad_norm),
                static_cast<std::int64_t>(program_.item<float>(update_.skipped))};
  if (update_.loss_scale.defined()) {
    result.overflowed = static_cast<std::int64_t>(program_.item<float>(update_.overflowed));
    result.loss_scale = program_.item<float>(update_.loss_scale);
  }
  return result;
}

EvaluationProgram::EvaluationProgram(const Gpt& model, const ProgramOptions& options)
    : tokens_(token_input(graph_, "tokens", model, options)),
      targets_(token_input(graph_, "targets", model, options)),
      loss_(loss_of(model, tokens_, targets_, Mode::evaluate, options.precision)),
      program_(compile(graph_, {loss_}, compile_options(options))) {}

float EvaluationProgram::run(const std::vector<std::int32_t>& tokens,
                             const std::vector<std::int32_t>& targets) {
  program_.run({{tokens_, tokens}, {targets_, targets}});
  return static_cast<float>(program_.fetch(loss_).at(0));
}

}  // namespace tg
