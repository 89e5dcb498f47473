// The attributes that cross_entropy and linear_cross_entropy share with their kernels.
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

// A row's factor of linear_cross_entropy is never closer to 0, by which its target's 1 is divided.
inline constexpr double least_row_factor = 1e-6;

struct LinearCrossEntropyAttrs {
  std::int64_t ignore_index;
  double smoothing, z_loss;
  std::int64_t unit = 0;  // of the logits' rows (matmul_in_units.h); 0: they are one product
  void fields(auto&& field) const {
    field("ignore_index", ignore_index, -100), field("smoothing", smoothing, 0), field("z_loss", z_loss, 0);
    field("unit", unit, 0);
  }
};

}  // namespace tg
