// Attributes of slices, concatenations, index ops and ops along an axis, shared with their kernels. Axes are
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

struct SliceAssignAttrs {  // a third input, if present, replaces `start`
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

// Adds two gradients of one tensor. If z is zero outside of a slice of an axis, as the gradient of a slice
// is, adds only that slice. The addition is in place if nothing else reads a. The gradients of all slices in
// a loop then cost one pass over the tensor instead of one pass each.
Tensor add_gradient(const Tensor& a, const Tensor& z);

}  // namespace detail

}  // namespace tg
