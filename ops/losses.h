// What the ops that give a loss for each row share.
#pragma once

#include <tilegrad/ops/ops.h>

namespace tg::detail {

// Throws Error, with the line, unless the smoothing is 0 to 1.
void check_smoothing(const char* op, double smoothing, const std::source_location& where);
// The loss of all rows, of those whose target is not `ignore_index`; 0 if there is none. In
// cross_entropy.cpp.
Tensor reduced(const Tensor& loss, const Tensor& targets, Reduction reduction, std::int64_t ignore_index);

// c = max x of each row of logits and x - c, in the compute type: ξ = c + log π has no bits for log π if c is
// large.
struct LoweredLogits {
  explicit LoweredLogits(const Tensor& logits);
  Tensor log_sum() const;  // log π [..., 1]
  Tensor top, x_minus_c;   // [..., 1], [..., V]
};
// [· = t] as booleans of the logits' shape.
Tensor is_target(const Tensor& logits, const Tensor& targets);

}  // namespace tg::detail
