// The attributes that cross_entropy shares with its kernels.
#pragma once

#include <tilegrad/core/base/attrs.h>

namespace tg {

struct CrossEntropyAttrs {
  std::int64_t ignore_index;
  double smoothing;
  void fields(auto&& field) const {
    field("ignore_index", ignore_index, -100), field("smoothing", smoothing, 0);
  }
};

}  // namespace tg
