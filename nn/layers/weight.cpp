#include <tilegrad/nn/layers/weight.h>

#include <tilegrad/nn/layers/autocast.h>

namespace tg::nn {

void Weight::check_value() const {
  if (!parameter_.key()) throw Error("[weight] a layer created on Params::counting() has no values");
}

Tensor Weight::tensor(Graph& graph, std::source_location where) const {
  if (is_absent_) return {};
  check_value();
  return Autocast::weight(parameter_, graph, where);
}

Tensor Weight::stored(const TensorArg& x) const {
  if (is_absent_) return {};
  check_value();
  return x.tensor().graph().param(parameter_, x.where());
}

}  // namespace tg::nn
