// A first program: a graph, its gradient, and a step of gradient descent, compiled once and run 100 times.
//   build/examples/quickstart
// Exits with status 0 if the loss became smaller.
#include <tilegrad/tilegrad.h>

#include <cstdio>

int main() {
  tg::Graph g;
  tg::Parameter w("w", tg::Array::of<float>({3}, {1, 2, 3}));
  tg::Tensor x = g.input("x", {3});
  tg::Tensor loss = tg::sum(tg::gelu(x * g.param(w)));  // recorded and checked, not yet computed
  tg::Tensor z = tg::gradients(loss, {g.param(w)})[0];  // ordinary nodes of the same graph
  tg::Program step = tg::compile(g, {loss}, {.assign = {{w, g.param(w) - 0.1 * z}}});

  float first = 0, last = 0;
  for (int i = 0; i < 100; ++i) {
    step.run({{x, std::vector<float>{1, -1, 2}}});
    last = step.item<float>(loss);
    if (i == 0) first = last;
  }
  std::printf("loss %.4f → %.4f\nw = %s\n", first, last, w.read().text().c_str());
  return last < first ? 0 : 1;
}
