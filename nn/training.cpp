#include "nn/training.h"

#include "ops/ops.h"

namespace tg {

namespace {

Tensor token_input(Graph& graph, const char* name, const Gpt& model, const ProgramOptions& options) {
  return graph.input(name, {options.batch, model.config().context}, i32);
}

Tensor loss_of(const Gpt& model, const Tensor& tokens, const Tensor& targets, Mode mode) {
  return cross_entropy(model(tokens, mode), targets);
}

}  // namespace

TrainingProgram::TrainingProgram(const Gpt& model, const AdamW& optimizer, const ProgramOptions& options,
                                 std::uint64_t seed)
    : tokens_(token_input(graph_, "tokens", model, options)),
      targets_(token_input(graph_, "targets", model, options)),
      loss_(loss_of(model, tokens_, targets_, Mode::train)),
      update_(optimizer.minimize(loss_)),
      program_(compile(graph_, {loss_, update_.grad_norm, update_.skipped},
                       {.assign = update_.assign, .threads = options.threads, .verify = options.verify})) {
  program_.seed(seed);
}

TrainingProgram::Result TrainingProgram::run(const std::vector<std::int32_t>& tokens,
                                             const std::vector<std::int32_t>& targets, double learning_rate) {
  program_.run({{tokens_, tokens},
                {targets_, targets},
                {update_.learning_rate, std::vector<float>{static_cast<float>(learning_rate)}}});
  return {static_cast<float>(program_.fetch(loss_).at(0)), program_.item<float>(update_.grad_norm),
          static_cast<std::int64_t>(program_.item<float>(update_.skipped))};
}

EvaluationProgram::EvaluationProgram(const Gpt& model, const ProgramOptions& options)
    : tokens_(token_input(graph_, "tokens", model, options)),
      targets_(token_input(graph_, "targets", model, options)),
      loss_(loss_of(model, tokens_, targets_, Mode::evaluate)),
      program_(compile(graph_, {loss_}, {.threads = options.threads, .verify = options.verify})) {}

float EvaluationProgram::run(const std::vector<std::int32_t>& tokens,
                             const std::vector<std::int32_t>& targets) {
  program_.run({{tokens_, tokens}, {targets_, targets}});
  return static_cast<float>(program_.fetch(loss_).at(0));
}

}  // namespace tg
