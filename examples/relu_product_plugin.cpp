// A plugin for tools/gradcheck. A registered op is checked like a built-in op. Graph code and layers are
// registered as cases.
//    gradcheck --plugin build/examples/relu_product.so --op relu_product
#include <tilegrad/autograd/gradcheck/gradcheck.h>
#include "relu_product.h"

namespace {

using namespace tg;

const std::vector<SampleInput> vectors{{{8}, {Fill::off_zero, 0.4, 2}}, {{8}, {Fill::off_zero, 0.4, 2}}};

gradcheck::Callable graph_code(DType, Device) {
  return {{}, [](std::span<const Tensor> x) {
            return std::vector<Tensor>{example::relu_product_graph(x[0], x[1])};
          }};
}

// Calls a layer twice, layer(layer(u)), so that both calls share w.
gradcheck::Callable layer_twice(DType dtype, Device) {
  Array w({8}, dtype);
  for (int i = 0; i < 8; ++i) w.set(i, i % 2 ? 1.5 : -2);
  const example::ReluProduct layer(w);
  return {{layer.w()},
          [layer](std::span<const Tensor> x) { return std::vector<Tensor>{layer(layer(x[0]))}; }};
}

}  // namespace

// gradcheck calls this after loading the library.
extern "C" void tilegrad_plugin() {
  example::relu_product_op();
  gradcheck::register_case({"relu_product_graph", "vector", vectors, graph_code});
  gradcheck::register_case({"relu_product_layer", "twice", {vectors[0]}, layer_twice});
}
