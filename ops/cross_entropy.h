// The attributes that cross_entropy shares with its kernels.
#pragma once

#include <tilegrad/core/base/attrs.h>

namespace tg {

struct CrossEntropyAttrs {
  std::int64_t ignore_index;
  double smoothing;
  void fields(auto&& field) const { field("ignore_index", ignore_index), field("smoothing", smoothing); }
};

}  // namespace tg
