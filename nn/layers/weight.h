// Weight: a layer's parameter. Layers reach its tensor only through this class, so that none forgets
// Autocast.
#pragma once

#include <tilegrad/core/graph/graph.h>

namespace tg::nn {

class Weight {
 public:
  Weight() = default;  // none, for layers without a bias: absent
  explicit Weight(Parameter parameter) : parameter_(std::move(parameter)), is_absent_(false) {}

  bool is_absent() const { return is_absent_; }
  // Its value in the graph of x, in the dtype to compute in: the half type of the graph's Autocast, else the
  // parameter's own. When absent, an undefined tensor, which ops treat as an operand that is left out. Throws
  // Error for a weight of Params::counting().
  Tensor tensor(const TensorArg& x) const { return tensor(x.tensor().graph(), x.where()); }
  Tensor tensor(Graph& graph, std::source_location where = std::source_location::current()) const;
  // The same in the parameter's own dtype: for gains of norms, whose kernels accept any dtype.
  Tensor stored(const TensorArg& x) const;

  const Parameter& parameter() const { return parameter_; }  // for reading, writing and optimizers

 private:
  void check_value() const;
  Parameter parameter_;
  bool is_absent_ = true;
};

}  // namespace tg::nn
