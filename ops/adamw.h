// The attributes and the operand order of adamw, for the op and its kernels.
#pragma once

#include <string>
#include <vector>

#include <tilegrad/core/base/attrs.h>

namespace tg {

// Inputs: p, g, m and v of each parameter, one parameter after the other, then learning rate, step and scale.
// Outputs: p', m', v' and a copy of p' per parameter. The copy is empty ([0]) if it is not requested.
inline constexpr int adamw_ins = 4, adamw_outs = 4;

struct AdamWAttrs {
  double beta1, beta2, eps;
  std::vector<double> weight_decay;  // per parameter
  std::vector<DType> copies;         // dtype of each parameter's copy; the parameter's own dtype: no copy
  void fields(auto&& field) const {
    field("beta1", beta1, beta1), field("beta2", beta2, beta2), field("eps", eps, eps);
    field("weight_decay", weight_decay, weight_decay);
    std::string names;
    for (DType t : copies) names += (names.empty() ? "" : " ") + std::string(name_of(t));
    field("copies", names, names);
  }
};

}  // namespace tg
