// The attributes of layer_norm and rms_norm, for the ops and their kernels.
#pragma once

#include <tilegrad/core/base/attrs.h>

namespace tg {

struct Op;

// The statistics of a row, in the compute type, are its mean (layer_norm only) and 1/σ.
// - Forward inputs: x [..., n], then weight [n] and bias [n] if present. Outputs: y, then the statistics,
//   which the gradient needs.
// - Backward inputs: x, z, the statistics, then the weight if present. Outputs: z_x, then z_weight and z_bias
//   if needed.
struct NormAttrs {
  double eps;
  bool weight, bias;  // backward: bias means that z_bias is needed
  bool weight_gradient = false;
  void fields(auto&& field) const {
    field("eps", eps, eps), field("weight", weight, weight), field("bias", bias, bias);
    field("weight_gradient", weight_gradient, weight_gradient);
  }
};

// The attributes of a node or step that computes layer_norm or rms_norm; null for other ops.
const NormAttrs* norm_of(const Op& op, const Attrs& attrs);

}  // namespace tg
