#include <tilegrad/nn/optimizers/adamw.h>

namespace tg::optim {

AdamWState adamw_state(std::size_t place, const Parameter& p, const Optimizer::Decay& decay) {
  return {place, p, Optimizer::zero_beside(p, "m"), Optimizer::zero_beside(p, "v"), decay(p)};
}

void append_adamw(const std::vector<AdamWState>& states, const Optimizer::Step& step,
                  const AdamWOptions& options, std::vector<Assign>& assign) {
  if (states.empty()) return;
  Graph& graph = step.learning_rate.graph();
  std::vector<AdamWTensors> all;
  for (const AdamWState& s : states) {
    const Parameter& copy = step.copies[s.place];
    all.push_back({step.weights[s.place], step.gradients[s.place], graph.param(s.m), graph.param(s.v),
                   s.decay, copy.key() ? std::optional(copy.dtype()) : std::nullopt});
  }
  const auto after = adamw(all, step.learning_rate, step.number, step.scale, options);
  for (std::size_t i = 0; i < states.size(); ++i) {
    const auto& [w, m, v, copy] = after[i];
    assign.push_back({states[i].parameter, w});
    assign.push_back({states[i].m, m});
    assign.push_back({states[i].v, v});
    if (copy.defined()) assign.push_back({step.copies[states[i].place], copy});
  }
}

AdamW::AdamW(const std::vector<Parameter>& params, Options o)
    : Optimizer(params, o.clip, o.loss_scale), options_{o.beta1, o.beta2, o.eps} {
  const Decay decay = o.decay ? o.decay : decay_of_matrices(o.weight_decay);
  for (std::size_t i = 0; i < parameters().size(); ++i)
    states_.push_back(adamw_state(i, parameters()[i], decay));
}

std::vector<Parameter> AdamW::moments() const {
  std::vector<Parameter> all;
  for (const AdamWState& s : states_) all.push_back(s.m), all.push_back(s.v);
  return all;
}

}  // namespace tg::optim
