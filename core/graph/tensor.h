// Tensor: a small handle on a value of a graph. Copies refer to the same value. A handle is valid while the
// graph, or a program compiled from it, exists.
#pragma once

#include <concepts>
#include <source_location>
#include <string>
#include <vector>

#include <tilegrad/core/base/dtype.h>
#include <tilegrad/core/base/layout.h>

namespace tg {

// The source line of a call, for error messages. The default argument Where::current() gives the caller's
// line.
using Where = std::source_location;

// The graph that records nodes; see core/graph/graph.h.
class Graph;
// Index of a value in its graph.
using ValueId = std::uint32_t;

// A handle on one value of a graph: an input, a parameter, a constant or a result of an op.
class Tensor {
 public:
  Tensor() = default;  // undefined: refers to no value
  // A handle on value `id` of `graph`.
  Tensor(Graph* graph, ValueId id) : graph_(graph), id_(id) {}

  // Whether the handle refers to a value.
  bool defined() const { return graph_ != nullptr; }
  // The graph of the value. This function and all functions below throw Error if the tensor is undefined.
  Graph& graph() const;
  // The index of the value in its graph.
  ValueId id() const { return id_; }
  // The shape, outermost axis first.
  const Shape& shape() const { return layout().shape; }
  std::int64_t size(std::int64_t axis) const;  // size of an axis; negative axes count from the end
  // Number of axes.
  int rank() const { return shape().size(); }
  // Number of elements.
  std::int64_t numel() const { return layout().numel(); }
  // The layout: shape, strides and offset in elements.
  const Layout& layout() const;
  // The element type.
  DType dtype() const;
  std::string text() const;  // dtype and shape: "f32 [2, 3]"
  // Whether both are handles on the same value.
  friend bool operator==(const Tensor&, const Tensor&) = default;

  // Same as tg::transpose(), tg::permute(), tg::view(), tg::expand(), tg::slice(), tg::squeeze() and
  // tg::unsqueeze() of ops/ops.h: views of the same memory [Stratos, FlashAttention §B.3]. Negative axes
  // count from the end. ShapeError is thrown as in core/base/layout.h.
  Tensor transpose(std::int64_t a, std::int64_t b, Where = Where::current()) const;
  // Same as tg::permute().
  Tensor permute(const Axes& order, Where = Where::current()) const;
  // Same as tg::view().
  Tensor view(const Shape& shape, Where = Where::current()) const;
  // Same as tg::expand().
  Tensor expand(const Shape& shape, Where = Where::current()) const;
  // Same as tg::slice().
  Tensor slice(std::int64_t axis, std::int64_t start, std::int64_t stop, std::int64_t step = 1,
               Where = Where::current()) const;
  // Same as tg::squeeze().
  Tensor squeeze(std::int64_t axis, Where = Where::current()) const;
  // Same as tg::unsqueeze().
  Tensor unsqueeze(std::int64_t axis, Where = Where::current()) const;
  // Same as tg::reshape(): a view if the strides allow it, otherwise a view of a contiguous copy.
  Tensor reshape(const Shape& shape, Where = Where::current()) const;
  // Same as tg::contiguous().
  Tensor contiguous(Where = Where::current()) const;
  // Converts to a dtype, as tg::cast().
  Tensor to(DType, Where = Where::current()) const;

  // Reduces over the given axes, or over all if none are given; `keepdim` keeps reduced axes with size 1.
  // Same as tg::sum().
  Tensor sum(const Axes& axes = {}, bool keepdim = false, Where = Where::current()) const;
  // Same as tg::mean().
  Tensor mean(const Axes& axes = {}, bool keepdim = false, Where = Where::current()) const;
  // Same as tg::max().
  Tensor max(const Axes& axes = {}, bool keepdim = false, Where = Where::current()) const;
  // Same as tg::min().
  Tensor min(const Axes& axes = {}, bool keepdim = false, Where = Where::current()) const;

 private:
  Graph* graph_ = nullptr;
  ValueId id_ = 0;
};

// An argument of an op: a tensor or a number, with the source line of the call. All ops and operators have
// arguments of this type, so error messages contain the user's line without an extra parameter. An optional
// operand is absent if it is `{}` or an undefined Tensor.
class TensorArg {
 public:
  TensorArg() = default;  // absent
  // A tensor operand.
  TensorArg(Tensor t, Where where = Where::current()) : tensor_(t), where_(where) {}
  // A number, converted to double; is_exact() reports whether it was rounded.
  template <class N>
  requires std::is_arithmetic_v<N> TensorArg(N number, Where where = Where::current())
      : number_(static_cast<double>(number)),
        is_number_(true),
        is_exact_(static_cast<long double>(number) == static_cast<long double>(number_) || number != number),
        where_(where) {}

  // Whether it is neither a number nor a defined tensor.
  bool is_absent() const { return !is_number_ && !tensor_.defined(); }
  // Whether it is a number.
  bool is_number() const { return is_number_; }
  // The number; 0 if it is a tensor.
  double number() const { return number_; }
  bool is_exact() const { return is_exact_; }  // false for an integer that double cannot represent
  // The tensor. Throws Error if the argument is a number or absent.
  const Tensor& tensor() const {
    if (is_number_ || !tensor_.defined()) refuse();
    return tensor_;
  }
  // The tensor of an optional operand, undefined if absent. Throws Error if the argument is a number.
  const Tensor& optional() const {
    if (is_number_) refuse();
    return tensor_;
  }
  // The source line of the call.
  const Where& where() const { return where_; }

 private:
  [[noreturn]] void refuse() const;
  Tensor tensor_;
  double number_ = 0;
  bool is_number_ = false, is_exact_ = true;
  Where where_;
};

}  // namespace tg
