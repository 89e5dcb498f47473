// A custom op and layer [Stratos, Efficient Attention §C]: f(x, y) = ReLU(x ⊛ y) with the backward
//    z_x,i = 1(x_i y_i > 0) · y_i · z_i   and   z_y,i = 1(x_i y_i > 0) · x_i · z_i.
// The op is written twice: as C++ functions on host memory, and as graph code. The layer has a learnable w.
#pragma once

#include <tilegrad/autograd/custom_op.h>
#include <tilegrad/ops/ops.h>

namespace example {

using namespace tg;

// The op as C++ functions. This is for ops that cannot be composed of other ops. Runs on the host, on one
// thread.
inline const CustomOp& relu_product_op() {
  static const CustomOp op = register_host_op(
      {.name = "relu_product",
       .doc = "x, y → t: t = max(x ⊛ y, 0)",
       .forward =
           [](std::span<const HostView> in, std::span<const HostView> out) {
             const HostView &x = in[0], &y = in[1], &t = out[0];
             for (std::int64_t i = 0; i < t.numel(); ++i) {
               const double product = x.at(i) * y.at(i);
               t.set(i, product > 0 ? product : 0);
             }
           },
       .backward =
           [](const HostGradient& g) {
             const HostView &x = g.in[0], &y = g.in[1], &z = g.z[0];
             for (std::int64_t i = 0; i < z.numel(); ++i) {
               const double through = x.at(i) * y.at(i) > 0 ? z.at(i) : 0;
               g.z_in[0].set(i, through * y.at(i));
               g.z_in[1].set(i, through * x.at(i));
             }
           },
       // Inputs with x·y ≠ 0, because ReLU has no derivative at 0.
       .samples = {{"vector", {{{8}, {Fill::off_zero, 0.4, 2}}, {{8}, {Fill::off_zero, 0.4, 2}}}, {}},
                   {"matrix",
                    {{{3, 4}, {Fill::off_zero, 0.4, 2}}, {{3, 4}, {Fill::off_zero, 0.4, 2}}},
                    {}}}});
  return op;
}
inline Tensor relu_product(TensorArg x, TensorArg y) {
  return relu_product_op()(x, y);
}

// The op as graph code, which supports every backend and every order of derivative.
inline Tensor relu_product_graph(TensorArg x, TensorArg y) {
  static const CustomOp op = custom_op(
      "relu_product_graph",
      {.forward = [](const std::vector<Tensor>& in) { return std::vector<Tensor>{relu(in[0] * in[1])}; },
       .backward =
           [](const std::vector<Tensor>& in, const std::vector<Tensor>&, const std::vector<Tensor>& z) {
             const Tensor through = where(greater(in[0] * in[1], 0), z[0], 0);
             return std::vector<Tensor>{through * in[1], through * in[0]};
           }});
  return op(x, y);
}

// The layer ReLU(w ⊛ x) with a learnable w [d].
class ReluProduct {
 public:
  explicit ReluProduct(const Array& w) : w_("w", w) {}
  Tensor operator()(const Tensor& x) const { return relu_product(x.graph().param(w_), x); }
  const Parameter& w() const { return w_; }

 private:
  Parameter w_;
};

}  // namespace example
