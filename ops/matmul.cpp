// Matrix multiplication over the last two axes with broadcast leading axes [Stratos, Efficient Attention §A],
// optionally with a bias.
#include "ops/common.h"

namespace tg {

namespace {

struct MatmulAttrs {
  bool wide = false;  // the result and the bias have the accumulation type
  void fields(auto&& field) const { field("wide", wide, false); }
};

std::int64_t inner_of_b(const Shape& b) {
  return b[b.size() == 1 ? 0 : b.size() - 2];
}

Shape leading(const Shape& s) {
  Shape out;
  for (int i = 0; i + 2 < s.size(); ++i) out.push_back(s[i]);
  return out;
}

bool can_multiply(const Tensor& a, const Tensor& b) {
  return a.rank() >= 1 && b.rank() >= 1 && a.shape().back() == inner_of_b(b.shape());
}

std::vector<OutSpec> infer_matmul(std::span<const Operand> in, const Attrs& attrs) {
  detail::require_operands(in, 2, 3);
  const Operand &a = in[0], &b = in[1];
  detail::require_float(a.dtype);
  const DType dtype = attrs.as<MatmulAttrs>().wide ? compute_type(a.dtype) : a.dtype;
  if (b.dtype != a.dtype) throw DTypeError("operands differ in dtype");
  if (in.size() == 3 && in[2].dtype != dtype) throw DTypeError("the bias differs in dtype from the result");
  detail::check_rank_at_least(a, 1);
  detail::check_rank_at_least(b, 1);
  if (a.shape().back() != inner_of_b(b.shape()))
    throw ShapeError("inner sizes differ: a " + a.shape().text() + " · b " + b.shape().text());
  detail::check_rank_at_least(a, 2);
  detail::check_rank_at_least(b, 2);
  Shape out = broadcast_shapes(leading(a.shape()), leading(b.shape()), "matmul");
  out.push_back(a.shape()[a.shape().size() - 2]);
  out.push_back(b.shape().back());
  if (in.size() == 3 && broadcast_shapes(out, in[2].shape(), "matmul") != out)
    throw ShapeError("the bias " + in[2].shape().text() + " does not broadcast to the product " + out.text());
  return detail::row_major_output(dtype, out);
}

Tensor flipped(const Tensor& x) {
  return transpose(x, -2, -1);
}

// Returns x·y. The last two axes have the same order in memory as in `like`. The gradient of a transposed
// weight then has the layout of the weight.
Tensor product_like(const Tensor& like, const Tensor& x, const Tensor& y) {
  const Strides& s = like.layout().strides;
  const int r = like.rank();
  const bool column_major = s[r - 2] == 1 && s[r - 1] > 1;
  return column_major ? flipped(matmul(flipped(y), flipped(x))) : matmul(x, y);
}

// The number of rows of x [..., m, n] as [rows, n].
std::int64_t count_rows(const Tensor& x) {
  return numel(detail::without_last_axis(x.shape()));
}
Tensor as_rows(const Tensor& x) {
  return reshape(x, {count_rows(x), x.size(-1)});
}

// z_A = z·Bᵀ and z_B = Aᵀ·z [Stratos, Efficient Attention §C.1], summed over broadcast axes. If all matrices
// of A are multiplied by the same matrix B, one GEMM over all rows computes the sum for z_B.
Tensors matmul_gradient(const Backprop& g) {
  const Tensor &a = g.in[0], &b = g.in[1], z = cast(g.z[0], a.dtype());
  Tensors out(g.in.size());
  if (g.needed[0]) out[0] = sum_to(product_like(a, z, flipped(b)), a.shape());
  if (g.needed[1]) {
    out[1] = b.rank() == 2 ? product_like(b, flipped(as_rows(a)), as_rows(z))
                           : sum_to(product_like(b, flipped(a), z), b.shape());
  }
  if (g.in.size() == 3 && g.needed[2]) out[2] = sum_to(g.z[0], g.in[2].shape());
  return out;
}

Tensor recorded(const Tensor& a, const Tensor& b, const Tensor& bias, const MatmulAttrs& attrs) {
  return bias.defined() ? record(matmul_op, {a, b, bias}, attrs) : record(matmul_op, {a, b}, attrs);
}

// Records a·b + bias. If b is a single matrix and a's leading axes can be merged, this is one GEMM over all
// rows.
Tensor product(const Tensor& a, const Tensor& b, const Tensor& bias, const MatmulAttrs& attrs) {
  if (b.rank() == 2 && a.rank() > 2) {
    Shape out = a.shape();
    out[out.size() - 1] = b.size(1);
    const Shape flat{count_rows(a), a.size(-1)};
    if (can_view(a.layout(), flat)) return view(recorded(view(a, flat), b, bias, attrs), out);
  }
  return recorded(a, b, bias, attrs);
}

Tensor matmul_with(const TensorArg& first, const TensorArg& second, Tensor bias,
                   const MatmulAttrs& attrs = {}) {
  const Scope scope(first);
  Tensor a = first.tensor(), b = second.tensor();
  DType dtype = detail::promote(a.dtype(), b.dtype());
  if (bias.defined()) dtype = detail::promote(dtype, bias.dtype());
  a = cast(a, dtype);
  b = cast(b, dtype);
  if (bias.defined()) bias = cast(bias, dtype);
  if (!can_multiply(a, b)) return recorded(a, b, bias, attrs);  // throws an error with the caller's shapes
  const bool row = a.rank() == 1, column = b.rank() == 1;
  Tensor c = product(row ? unsqueeze(a, 0) : a, column ? unsqueeze(b, 1) : b, bias, attrs);
  if (row) c = squeeze(c, -2);
  return column ? squeeze(c, -1) : c;
}

std::vector<Sample> matmul_samples() {
  const auto call = [](std::span<const Tensor> x) { return matmul(x[0], x[1]); };
  const auto of_flipped = [](std::span<const Tensor> x) { return matmul(flipped(x[0]), flipped(x[1])); };
  const auto wide = [](std::span<const Tensor> x) { return matmul_wide(x[0], flipped(x[1])); };
  const auto of_vector = [](std::span<const Tensor> x) { return linear(x[0], flipped(x[1]), x[2]); };
  return {{"2d", {{{5, 3}}, {{3, 4}}}, call},
          {"batched", {{{2, 5, 3}}, {{2, 3, 4}}}, call},
          {"one matrix b", {{{2, 5, 3}}, {{3, 4}}}, call},
          {"one matrix a", {{{5, 3}}, {{2, 3, 4}}}, call},
          {"broadcast", {{{2, 1, 4, 3}}, {{3, 3, 2}}}, call},
          {"vectors", {{{5}}, {{5}}}, call},
          {"vector a", {{{3}}, {{2, 3, 4}}}, call},
          {"vector b", {{{2, 4, 3}}, {{3}}}, call},
          {"transposed", {{{3, 5}}, {{4, 3}}}, of_flipped},
          {"wide", {{{2, 5, 3}}, {{4, 3}}}, wide},
          {"square", {{{4, 4}}, {{4, 4}}}, call},  // the transposed view is stored column-major
          {"inner size 0", {{{4, 0}}, {{0, 3}}}, call},
          {"linear", {{{2, 5, 3}}, {{3, 4}}, {{4}}}, [](auto x) { return linear(x[0], x[1], x[2]); }},
          {"linear of a vector", {{{3}}, {{4, 3}}, {{4}}}, of_vector}};
}

}  // namespace

const Op& matmul_op = *define_op(
    {.name = "matmul",
     .doc = "a [..., m, k], b [..., k, n], bias? → y [..., m, n]: y = a·b + bias; leading axes broadcast",
     .infer = infer_matmul,
     .vjp = matmul_gradient,
     .samples = matmul_samples,
     .cost = detail::product_cost,
     .roundings =
         [](std::span<const Operand> in, std::span<const Operand>, const Attrs&) {
           return static_cast<double>(in[0].shape().back()) + 1;  // one more for the bias
         },
     .product = true,
     .addend = 2,
     .recompute = Recompute::costly,
     .strided_results = true,
     .inplace = {{0, 2}}});

Tensor matmul(TensorArg a, TensorArg b) {
  return matmul_with(a, b, {});
}

Tensor matmul_wide(TensorArg a, TensorArg b) {
  return matmul_with(a, b, {}, {.wide = true});
}

Tensor linear(TensorArg x, TensorArg w, TensorArg bias) {
  return matmul_with(x, w, bias.optional());
}

}  // namespace tg
