// Attributes of slices, concatenations, index ops and ops along an axis. The kernels also use them. Axes are
// not negative.
#pragma once

#include <tilegrad/core/base/attrs.h>
#include <tilegrad/core/graph/tensor.h>

namespace tg {

struct AxisAttrs {  // concat, index_select, index_add, index_assign, gather, scatter_add, embedding
  std::int64_t axis;
  void fields(auto&& field) const { field("axis", axis); }
};

struct SoftmaxAttrs {  // softmax, log_softmax, logsumexp
  std::int64_t axis;   // 0 … rank-1
  void fields(auto&& field) const { field("axis", axis); }
};

struct SliceAssignAttrs {  // an optional third input replaces `start`
  std::int64_t axis, start, step;
  // The `stop` argument with which slice() reads the n assigned positions.
  std::int64_t stop(std::int64_t n) const { return n == 0 ? start : start + (n - 1) * step + 1; }
  void fields(auto&& field) const { field("axis", axis), field("start", start), field("step", step, 1); }
};

struct SliceAtAttrs {
  std::int64_t axis, length;
  void fields(auto&& field) const { field("axis", axis), field("length", length); }
};

struct CumsumAttrs {
  std::int64_t axis;
  bool reverse;
  void fields(auto&& field) const { field("axis", axis), field("reverse", reverse, false); }
};

struct TopKAttrs {
  std::int64_t axis, k;
  void fields(auto&& field) const { field("axis", axis), field("k", k); }
};

struct ArangeAttrs {
  double start, step;
  std::int64_t count;
  DType dtype;
  void fields(auto&& field) const {
    field("start", start), field("step", step, 1), field("count", count), field("dtype", dtype);
  }
};

namespace detail {

// Adds two gradients of one tensor. If z is the gradient of a slice, it is zero outside of the slice, and
// only the slice is added. If nothing else reads a, the addition is in place. If a loop reads all slices of a
// tensor, the gradients of all slices together then cost one pass over the tensor.
Tensor add_gradient(const Tensor& a, const Tensor& z);

}  // namespace detail

}  // namespace tg
