// The attributes that adamw shares with its kernel.
#pragma once

#include "core/attrs.h"

namespace tg {

struct AdamWAttrs {
  double beta1, beta2, eps, weight_decay;
  void fields(auto&& field) const {
    field("beta1", beta1), field("beta2", beta2), field("eps", eps), field("weight_decay", weight_decay);
  }
};

}  // namespace tg
