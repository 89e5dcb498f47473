#include <tilegrad/nn/layers/module.h>

#include <tilegrad/ops/ops.h>

namespace tg::nn {

namespace {

class Named : public Module {
 public:
  using Function = std::function<Tensor(TensorArg, const CallArgs&)>;
  Named(std::string name, Function f) : Module(std::move(name)), f_(std::move(f)) {}

 private:
  Tensor record(TensorArg x, const CallArgs& call) const override { return f_(x, call); }
  Function f_;
};

}  // namespace

Tensor Module::operator()(TensorArg x, const CallArgs& call) const {
  CallArgs inside = call;
  if (!adds_residual()) inside.residual = {};
  const Tensor y = [&] {
    const Scope scope(name_, x.where());
    return record(x, inside);
  }();
  if (adds_residual() || !call.residual.defined()) return y;
  return TensorArg(call.residual, x.where()) + y;
}

std::optional<Product> Module::as_matmul(TensorArg x) const {
  const Scope scope(name_, x.where());
  return operands(x);
}

Layer Layer::of_function(std::string name, Function f) {
  if (!f) throw Error("[layer] " + name + " is made of an empty function");
  return Named(std::move(name), std::move(f));
}

Tensor Layer::operator()(TensorArg x, const CallArgs& call) const {
  if (is_empty()) throw Error(in_context("[layer] an empty Layer was called", x.where()));
  return (*module_)(x, call);
}

std::optional<Product> Layer::as_matmul(TensorArg x) const {
  if (is_empty()) throw Error(in_context("[layer] an empty Layer was called", x.where()));
  return module_->as_matmul(x);
}

}  // namespace tg::nn
