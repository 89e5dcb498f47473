// A first program of a user of the installed package.
#include <tilegrad/tilegrad.h>

#include <iostream>

int main() {
  tg::Graph graph;
  const tg::Tensor x = graph.constant(tg::Array::of<float>({1, 2, 3}));
  std::cout << tg::eval(tg::sum(x * x)).item<float>() << '\n';
}
