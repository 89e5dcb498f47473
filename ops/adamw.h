// The attributes and the operand order of adamw, for the op and its kernels.
#pragma once

#include <string>
#include <vector>

#include <tilegrad/core/base/attrs.h>

namespace tg {

// The inputs are p, g, m and v of the first parameter, then of the next one, and so on. Learning rate, step
// and scale follow. The outputs are p', m', v' and a copy of p' for each parameter. If a copy is not
// requested, it is empty ([0]).
inline constexpr int adamw_ins = 4, adamw_outs = 4;

struct AdamWAttrs {
  double beta1, beta2, eps;
  std::vector<double> weight_decay;  // per parameter
  std::vector<DType> copies;         // dtype of each copy; the dtype of the parameter: no copy
  void fields(auto&& field) const {
    field("beta1", beta1, beta1), field("beta2", beta2, beta2), field("eps", eps, eps);
    field("weight_decay", weight_decay, weight_decay);
    std::string names;
    for (DType t : copies) names += (names.empty() ? "" : " ") + std::string(name_of(t));
    field("copies", names, names);
  }
};

}  // namespace tg
