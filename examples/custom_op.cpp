// Checks the gradient of a custom op, ReLU(x ⊛ y) of relu_product.h, which is written as C++ functions and as
// graph code. A second op has a wrong gradient, which gradcheck detects.
//    build/examples/custom_op
// Exits with status 0 if the first op is correct in every dtype and view and the wrong gradient is found.
// relu_product_plugin.cpp does the same as a plugin of tools/gradcheck.
#include <cstdio>

#include <tilegrad/autograd/gradcheck/gradcheck.h>
#include <tilegrad/tilegrad.h>
#include "relu_product.h"

using namespace tg;
using Tensors = std::vector<Tensor>;

namespace {

// Inputs with x·y ≠ 0, because ReLU has no derivative at 0.
const std::vector<SampleInput> inputs{{{8}, {Fill::off_zero, 0.4, 2}}, {{8}, {Fill::off_zero, 0.4, 2}}};

gradcheck::Case case_of(const std::string& name, Tensor (*f)(TensorArg, TensorArg)) {
  return {name, "vector", inputs, [f](DType, Device) {
            return gradcheck::Callable{{}, [f](auto x) { return Tensors{f(x[0], x[1])}; }};
          }};
}

// A wrong gradient: z_y should be 1(x·y > 0)·x·z, but the factor z is missing.
Tensor forgetful(TensorArg x, TensorArg y) {
  static const CustomOp op =
      custom_op("forgetful", {.forward = [](const Tensors& in) { return Tensors{relu(in[0] * in[1])}; },
                              .backward =
                                  [](const Tensors& in, const Tensors&, const Tensors& z) {
                                    const Tensor open = greater(in[0] * in[1], 0);
                                    return Tensors{where(open, z[0] * in[1], 0), where(open, in[0], 0)};
                                  }});
  return op(x, y);
}

// Returns the number of failed checks of a case, in all views and dtypes.
int failures(const gradcheck::Case& c) {
  int checks = 0, failed = 0;
  double worst = 0;
  for (const gradcheck::Result& r : gradcheck::check(c, {})) {
    ++checks, failed += r.status != gradcheck::Status::ok;
    worst = std::max(worst, r.ratio);
  }
  std::printf("%-25s %2d checks, %2d failed, largest error %.2g of the tolerance\n", c.text().c_str(), checks,
              failed, worst);
  return failed;
}

}  // namespace

int main() try {
  // In a graph, a custom op is used like any other op, and it has gradients.
  Graph g;
  const Tensor x = g.input("x", {3}), y = g.input("y", {3}), t = example::relu_product(x, y);
  const auto z = gradients(sum(t), {x, y});
  const std::vector<float> xs{1, -2, 3}, ys{4, 5, 6};
  const auto got = eval({t, z[0], z[1]}, {{x, xs}, {y, ys}});
  std::printf("t %s, z_x %s, z_y %s\n", got[0].text().c_str(), got[1].text().c_str(), got[2].text().c_str());
  bool good = got[0].at(0) == 4 && got[0].at(1) == 0 && got[1].at(2) == 6 && got[2].at(1) == 0;

  int checked = 0;  // the samples registered with relu_product
  for (const gradcheck::Case& c : gradcheck::op_cases())
    if (c.owner == "relu_product") good = failures(c) == 0 && good, ++checked;
  good = failures(case_of("relu_product_graph", &example::relu_product_graph)) == 0 && good;
  good = failures(case_of("forgetful", &forgetful)) > 0 && good;
  return good && checked == 2 ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}
