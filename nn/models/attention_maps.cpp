#include <tilegrad/nn/models/attention_maps.h>

#include <tilegrad/core/compile/compile.h>
#include <tilegrad/ops/ops.h>

namespace tg::nn {

std::vector<AttentionMap> attention_maps(const LanguageModel& model, const std::vector<std::int32_t>& tokens,
                                         int threads) {
  Graph graph;
  const Tensor x = graph.input("tokens", {1, std::ssize(tokens)}, i32);
  model.features(x, {});
  std::vector<AttentionMap> maps;
  std::vector<Tensor> attention, weights;  // recording moves the nodes
  for (const Node& node : graph.nodes()) {
    if (!attention_of(*node.op, node.attrs)) continue;
    maps.push_back({graph.name_of(node), Array(Shape{}, f32)});
    attention.push_back(graph.tensor(node.first_out));
  }
  for (const Tensor& o : attention) weights.push_back(cast(squeeze(attention_weights(o), 0), f32));
  Program program = compile(graph, weights, {.threads = threads});
  program.run({{x, tokens}});
  for (std::size_t i = 0; i < maps.size(); ++i) maps[i].weights = program.fetch(weights[i]);
  return maps;
}

}  // namespace tg::nn
