// The attributes of layer_norm and rms_norm, for the ops and their kernels.
#pragma once

#include <tilegrad/core/base/attrs.h>

namespace tg {

struct Op;

// The statistics of a row, in the compute type, are its mean (layer_norm only) and 1/σ.
// - The forward has the inputs x [..., n] and, if present, weight [n] and bias [n]. The outputs are y and the
//   statistics. The backward reads the statistics.
// - The backward has the inputs x, z, the statistics and, if present, the weight. The outputs are z_x and, if
//   needed, z_weight and z_bias.
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
