#include "tools/bench/model_flops.h"

#include <tilegrad/core/run/cost.h>
#include <tilegrad/nn/training/training.h>
#include "tools/train_report.h"

namespace tg::bench {

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

}  // namespace tg::bench
