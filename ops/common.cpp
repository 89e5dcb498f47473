#include "ops/common.h"

namespace tg::detail {

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_float(a) != is_float(b)) return is_float(a) ? a : b;
  if (is_float(a)) return a == f64 || b == f64 ? f64 : f32;
  if (a == boolean || b == boolean) return a == boolean ? b : a;
  return a < b ? a : b;  // i64, i32, u8 in this order
}

Broadcast broadcast_pair(const Op& op, const TensorArg& a, const TensorArg& b) {
  if (a.is_number() && b.is_number())
    throw Error(in_context("[" + op.name + "] needs at least one tensor", a.where()));
  for (const TensorArg* x : {&a, &b})
    if (x->is_absent()) throw Error(in_context("[" + op.name + "] got an undefined tensor", x->where()));
  const TensorArg& like = a.is_number() ? b : a;
  const Scope scope(like);
  Graph& graph = like.tensor().graph();
  DType dtype = like.tensor().dtype();
  if (!a.is_number() && !b.is_number()) dtype = promote(a.tensor().dtype(), b.tensor().dtype());
  const Shape sa = a.is_number() ? Shape() : a.tensor().shape(),
              sb = b.is_number() ? Shape() : b.tensor().shape();
  Shape shape;
  try {
    shape = broadcast_shapes(sa, sb, op.name.c_str());
  } catch (const ShapeError& e) {
    throw ShapeError(in_context(e.what(), like.where()));
  }
  const auto fit = [&](const TensorArg& x) {
    const Tensor t = x.is_number() ? scalar_operand(op, graph, x, dtype) : cast(x.tensor(), dtype);
    return t.shape() == shape ? t : expand(t, shape);
  };
  return {fit(a), fit(b)};
}

std::int64_t axis_of(const TensorArg& x, std::int64_t axis, const char* what) {
  return at_call(x, [&] { return normalize_axis(axis, x.tensor().rank(), what); });
}

Axes axes_of(const TensorArg& x, const Axes& axes, const char* what) {
  return at_call(x, [&] { return normalize_axes(axes, x.tensor().rank(), what); });
}

Tensor zeros_view(const Tensor& x) {
  const Tensor zero = full(x.graph(), {}, 0, x.dtype());
  return x.rank() == 0 ? zero : expand(zero, x.shape());
}

Tensor cast_float(const Tensor& x, DType dtype) {
  return is_float(x.dtype()) && is_float(dtype) ? cast(x, dtype) : x;
}

void require_float(DType t) {
  if (!is_float(t)) throw DTypeError("needs a floating tensor");
}

void require_index(DType t) {
  if (t != i64 && t != i32) throw DTypeError("needs indices of type i64 or i32");
}

void check_rank_at_least(const Operand& x, int rank) {
  if (x.layout.rank() < rank) throw ShapeError("needs at least " + std::to_string(rank) + " dimensions");
}

void require_shape(const char* name, const Operand& x, const Shape& shape) {
  if (x.shape() != shape) refuse_shape(name, x, shape.text());
}

void refuse_shape(const char* name, const Operand& x, const std::string& expected) {
  throw ShapeError(std::string(name) + " is " + x.shape().text() + ", expected " + expected);
}

void require_rng(const Operand& rng) {
  if (rng.dtype != i64 || rng.shape() != Shape{2}) throw ShapeError("needs the graph's rng() {seed, step}");
}

const Tensor& first_of(const std::vector<Tensor>& xs, const std::string& op, const Where& where) {
  if (xs.empty()) throw Error(in_context("[" + op + "] got no tensors, expected at least one", where));
  return xs[0];
}

void require_operands(std::span<const Operand> in, std::size_t least, std::size_t most) {
  if (in.size() >= least && in.size() <= most) return;
  throw Error("takes " + std::to_string(least) + (least == most ? "" : " to " + std::to_string(most)) +
              " operands, got " + std::to_string(in.size()));
}

std::vector<OutSpec> pointwise_output(std::span<const Operand> in, DType out) {
  const Operand* like = nullptr;
  for (const Operand& x : in) {
    if (x.shape() != in[0].shape()) throw ShapeError("operands differ in shape");
    if (!like && x.layout.is_dense()) like = &x;
  }
  return {{out, like ? dense_like(in[0].shape(), like->layout) : row_major(in[0].shape())}};
}

std::vector<OutSpec> row_major_output(DType dtype, const Shape& shape) {
  return {{dtype, row_major(shape)}};
}

Shape reduced_shape(const Shape& shape, const Axes& axes, bool keepdim) {
  Shape out;
  for (int i = 0; i < shape.size(); ++i) {
    if (!axes.contains(i))
      out.push_back(shape[i]);
    else if (keepdim)
      out.push_back(1);
  }
  return out;
}

Shape without_last_axis(Shape shape) {
  shape.erase(shape.size() - 1);
  return shape;
}

Cost product_cost(std::span<const Operand> in, std::span<const Operand> out, const Attrs&) {
  return {.flops =
              2.0 * static_cast<double>(out[0].layout.numel()) * static_cast<double>(in[0].shape().back())};
}

bool is_last_axis_contiguous(const Layout& l) {
  return l.shape.back() <= 1 || l.strides.back() == 1 || l.numel() == 0;
}

Tensor last_axis_contiguous(const Tensor& x) {
  return x.rank() == 0 || is_last_axis_contiguous(x.layout()) ? x : contiguous(x);
}

SampleInput sample_indices(const Shape& shape, double size) {
  return {shape, {Fill::index, 0, size}, i64};
}

std::vector<Sample> samples_by_index(Tensor (*f)(TensorArg, std::int64_t, TensorArg, TensorArg)) {
  const auto along = [f](std::int64_t axis) {
    return [f, axis](std::span<const Tensor> x) { return f(x[0], axis, x[1], x[2]); };
  };
  return {{"rows", {{{4, 3}}, sample_indices({6}, 4), {{6, 3}}}, along(0)},
          {"middle", {{{2, 5, 3}}, sample_indices({2, 2}, 5), {{2, 2, 2, 3}}}, along(1)},
          {"last", {{{3, 4}}, sample_indices({3}, 4), {{3, 3}}}, along(1)}};
}

}  // namespace tg::detail
