// The attributes that softmax, log_softmax and logsumexp share with their kernels.
#pragma once

#include <tilegrad/core/base/attrs.h>

namespace tg {

struct SoftmaxAttrs {
  std::int64_t axis;  // 0 … rank-1
  void fields(auto&& field) const { field("axis", axis); }
};

}  // namespace tg
