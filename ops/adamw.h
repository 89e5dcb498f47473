// The attributes that adamw shares with its kernels, and where they find its operands.
#pragma once

#include <vector>

#include <tilegrad/core/base/attrs.h>

namespace tg {

// Inputs: p, g, m and v of each parameter, one parameter after the other, then learning rate, step and scale.
// Outputs: p', m' and v' of each.
inline constexpr int adamw_ins = 4, adamw_outs = 3;

struct AdamWAttrs {
  double beta1, beta2, eps;
  std::vector<double> weight_decay;  // of each parameter
  void fields(auto&& field) const {
    field("beta1", beta1, beta1), field("beta2", beta2, beta2), field("eps", eps, eps);
    field("weight_decay", weight_decay, weight_decay);
  }
};

}  // namespace tg
