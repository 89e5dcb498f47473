// Tensor: a small handle on a value of a graph. Copies are handles on the same value. Valid while the graph,
// or a program compiled from it, exists.
#pragma once

#include <concepts>
#include <source_location>
#include <string>
#include <vector>

#include <tilegrad/core/base/dtype.h>
#include <tilegrad/core/base/layout.h>

namespace tg {

// The line of a call, for its errors: of the caller if it is a default argument, Where::current().
using Where = std::source_location;

class Graph;
using ValueId = std::uint32_t;

class Tensor {
 public:
  Tensor() = default;  // undefined: a handle on no value
  Tensor(Graph* graph, ValueId id) : graph_(graph), id_(id) {}

  bool defined() const { return graph_ != nullptr; }
  Graph& graph() const;  // this and what follows throw Error if undefined
  ValueId id() const { return id_; }
  const Shape& shape() const { return layout().shape; }
  std::int64_t size(std::int64_t axis) const;  // negative axes count from the end
  int rank() const { return shape().size(); }
  std::int64_t numel() const { return layout().numel(); }
  const Layout& layout() const;
  DType dtype() const;
  std::string text() const;  // "f32 [2, 3]"
  friend bool operator==(const Tensor&, const Tensor&) = default;

  // Views: nothing is copied [Stratos, FlashAttention §B.3]. Negative axes count from the end. Throw
  // ShapeError as in core/base/layout.h.
  Tensor transpose(std::int64_t a, std::int64_t b, Where = Where::current()) const;
  Tensor permute(const Axes& order, Where = Where::current()) const;
  Tensor view(const Shape& shape, Where = Where::current()) const;
  Tensor expand(const Shape& shape, Where = Where::current()) const;
  Tensor slice(std::int64_t axis, std::int64_t start, std::int64_t stop, std::int64_t step = 1,
               Where = Where::current()) const;
  Tensor squeeze(std::int64_t axis, Where = Where::current()) const;
  Tensor unsqueeze(std::int64_t axis, Where = Where::current()) const;
  // A view if strides can express it, otherwise a view of a contiguous copy.
  Tensor reshape(const Shape& shape, Where = Where::current()) const;
  Tensor contiguous(Where = Where::current()) const;
  Tensor to(DType, Where = Where::current()) const;

  // Reductions over the given axes, over all of them if none is given. keepdim: reduced axes stay, with
  // size 1.
  Tensor sum(const Axes& axes = {}, bool keepdim = false, Where = Where::current()) const;
  Tensor mean(const Axes& axes = {}, bool keepdim = false, Where = Where::current()) const;
  Tensor max(const Axes& axes = {}, bool keepdim = false, Where = Where::current()) const;
  Tensor min(const Axes& axes = {}, bool keepdim = false, Where = Where::current()) const;

 private:
  Graph* graph_ = nullptr;
  ValueId id_ = 0;
};

// An argument of an op: a tensor or a number, and the line of the call it was written in. Taking arguments as
// TensorArg is how every op knows the user's source line, operators included, without a parameter for it.
// An operand that may be left out is absent as `{}`, which an undefined Tensor is too.
class TensorArg {
 public:
  TensorArg() = default;  // absent
  TensorArg(Tensor t, Where where = Where::current()) : tensor_(t), where_(where) {}
  template <class N>
  requires std::is_arithmetic_v<N> TensorArg(N number, Where where = Where::current())
      : number_(static_cast<double>(number)),
        is_number_(true),
        is_exact_(static_cast<long double>(number) == static_cast<long double>(number_) || number != number),
        where_(where) {}

  bool is_absent() const { return !is_number_ && !tensor_.defined(); }
  bool is_number() const { return is_number_; }
  double number() const { return number_; }
  bool is_exact() const { return is_exact_; }  // false for an integer that a double has to round
  const Tensor& tensor() const {               // throws Error for a number or when absent
    if (is_number_ || !tensor_.defined()) refuse();
    return tensor_;
  }
  // Of an operand that may be left out: undefined when absent; throws Error for a number.
  const Tensor& optional() const {
    if (is_number_) refuse();
    return tensor_;
  }
  const Where& where() const { return where_; }

 private:
  [[noreturn]] void refuse() const;
  Tensor tensor_;
  double number_ = 0;
  bool is_number_ = false, is_exact_ = true;
  Where where_;
};

}  // namespace tg
