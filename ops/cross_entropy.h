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

// Minimum magnitude of a row's factor in linear_cross_entropy. The op divides by this factor.
inline constexpr double least_row_factor = 1e-6;

struct LinearCrossEntropyAttrs {
  std::int64_t ignore_index;
  double smoothing, z_loss;
  std::int64_t unit = 0;  // rows per unit of the logits (matmul_in_units.h); 0: one GEMM for all rows
  void fields(auto&& field) const {
    field("ignore_index", ignore_index, -100), field("smoothing", smoothing, 0), field("z_loss", z_loss, 0);
    field("unit", unit, 0);
  }
};

}  // namespace tg
