#include <tilegrad/nn/optimizers/adamw.h>

namespace tg::optim {

void append_adamw(const std::vector<AdamWState>& states, const Optimizer::Step& step,
                  const AdamWOptions& options, std::vector<NewWeight>& news, std::vector<Assign>& assign) {
  if (states.empty()) return;
  Graph& graph = step.learning_rate.graph();
  std::vector<AdamWTensors> all;
  for (const AdamWState& s : states)
    all.push_back({step.weights[s.shard], step.gradients[s.shard], graph.param(s.m), graph.param(s.v),
                   s.decay, step.copies[s.shard]});
  const auto after = adamw(all, step.learning_rate, step.number, step.scale, options);
  for (std::size_t i = 0; i < states.size(); ++i) {
    const auto& [w, m, v, copy] = after[i];
    news[states[i].shard] = {w, copy};
    assign.insert(assign.end(), {{states[i].m, m}, {states[i].v, v}});
  }
}

AdamW::AdamW(const std::vector<Parameter>& params, Options o)
    : Optimizer(params, o.clip, o.loss_scale, o.ranks), options_{o.beta1, o.beta2, o.eps} {
  options_.check("AdamW");
  const std::vector<double> decay = decays(o.weight_decay, o.decay);
  for (std::size_t i = 0; i < shards().list().size(); ++i)
    states_.push_back({i, zero_beside(i, "m"), zero_beside(i, "v"), decay[i]});
}

std::vector<NewWeight> AdamW::append(const Step& step, std::vector<Assign>& assign) const {
  std::vector<NewWeight> news(states_.size());
  append_adamw(states_, step, options_, news, assign);
  return news;
}

std::vector<Optimizer::Moment> AdamW::moments() const {
  std::vector<Moment> all(2);
  for (const AdamWState& s : states_) all[0].push_back(s.m), all[1].push_back(s.v);
  return all;
}

}  // namespace tg::optim
