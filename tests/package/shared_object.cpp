// A user's shared object that contains the library. NAME_step runs a training step, and NAME_refuse throws.
#include <tilegrad/tilegrad.h>

#define TG_JOIN(a, b) a##b
#define TG_NAME(a, b) TG_JOIN(a, b)

// Returns the weight after a step of gradient descent on Σ w·x, starting at w = 1. Returns −1 if find_op()
// finds a different op.
double TG_NAME(NAME, _step)(float x) {
  tg::Graph graph;
  const tg::Parameter w("w", tg::Array::of<float>({2}, {1, 1}));
  const tg::Tensor in = graph.input("x", {2}), loss = tg::sum(in * graph.param(w));
  const tg::Tensor z = tg::gradients(loss, {graph.param(w)})[0];
  if (graph.node_of(loss.id()).op != tg::find_op("sum")) return -1;
  tg::Program step = tg::compile(graph, {loss}, {.assign = {{w, graph.param(w) - 0.5 * z}}});
  step.run({{in, std::vector<float>{x, x}}});
  return w.read().at(0);
}

void TG_NAME(NAME, _refuse)() {
  (void)tg::Array::of<float>({2}, {1, 2, 3});
}
