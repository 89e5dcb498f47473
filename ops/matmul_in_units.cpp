#include "ops/matmul_in_units.h"

#include "ops/common.h"

namespace tg {

extern const Op& matmul_in_units_op;

std::vector<std::int64_t> units_of(std::int64_t n, std::int64_t unit) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(std::max<std::int64_t>(1, n / unit)), unit);
  sizes.back() = n - unit * static_cast<std::int64_t>(sizes.size() - 1);
  return sizes;
}

Tensor product_in_units_of_rows(const Tensor& a, const Tensor& b, std::int64_t unit) {
  return record(matmul_in_units_op, {a, b}, MatmulInUnitsAttrs{unit});
}

Tensor product_in_units_of_k(const Tensor& a, const Tensor& b, const Tensor& sum, std::int64_t unit) {
  const MatmulInUnitsAttrs attrs{unit, true};
  return sum.defined() ? record(matmul_in_units_op, {a, b, sum}, attrs)
                       : record(matmul_in_units_op, {a, b}, attrs);
}

namespace {

std::vector<OutSpec> infer_product(std::span<const Operand> in, const Attrs& attrs) {
  const auto& p = attrs.as<MatmulInUnitsAttrs>();
  detail::require_operands(in, 2, p.along_k ? 3 : 2);
  const Operand &a = in[0], &b = in[1];
  detail::require_float(a.dtype);
  if (b.dtype != a.dtype) throw DTypeError("operands differ in dtype");
  if (a.shape().size() != 2 || b.shape().size() != 2 || a.shape()[1] != b.shape()[0])
    throw ShapeError("needs a [m, k] and b [k, n]");
  if (p.unit < least_unit || p.unit % least_unit != 0)
    throw ShapeError("the unit is not a multiple of " + std::to_string(least_unit));
  const DType dtype = p.along_k ? compute_type(a.dtype) : a.dtype;
  const Shape shape{a.shape()[0], b.shape()[1]};
  if (in.size() == 3 && in[2].dtype != dtype) throw DTypeError("the sum differs in dtype from the result");
  if (in.size() == 3 && in[2].shape() != shape) throw ShapeError("the sum and the result differ in shape");
  return detail::row_major_output(dtype, shape);
}

Tensors decompose_product(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& p = attrs.as<MatmulInUnitsAttrs>();
  const int axis = p.along_k ? 1 : 0;
  const std::vector<std::int64_t> sizes = units_of(in[0].size(axis), p.unit);
  const Tensors as = split(in[0], sizes, axis);
  if (!p.along_k) {
    Tensors rows;
    for (const Tensor& a : as) rows.push_back(matmul(a, in[1]));
    return {concat(rows)};
  }
  const Tensors bs = split(in[1], sizes);
  Tensor sum = in.size() == 3 ? in[2] : Tensor();
  for (std::size_t i = 0; i < as.size(); ++i) {
    const Tensor product = matmul_wide(as[i], bs[i]);
    sum = sum.defined() ? sum + product : product;
  }
  return {sum};
}

std::vector<Sample> product_samples() {
  const auto of_rows = [](auto x) { return product_in_units_of_rows(x[0], x[1], 64); };
  const auto of_k = [](auto x) { return product_in_units_of_k(x[0], x[1], {}, 64); };
  const auto added = [](const Tensor& a, const Tensor& b, const Tensor& sum) {
    return product_in_units_of_k(a, b, cast(sum, compute_type(sum.dtype())), 64);
  };
  return {
      {"of rows", {{{135, 3}}, {{3, 6}}}, of_rows},
      {"of k", {{{3, 199}}, {{199, 4}}}, of_k},
      {"of k, transposed",
       {{{135, 4}}, {{135, 6}}, {{4, 6}}},
       [=](auto x) { return added(transpose(x[0], 0, 1), x[1], x[2]); }},
      {"less than a unit", {{{3, 5}}, {{5, 4}}, {{3, 4}}}, [=](auto x) { return added(x[0], x[1], x[2]); }}};
}

}  // namespace

const Op& matmul_in_units_op = *define_op(
    {.name = "matmul_in_units",
     .doc =
         "a [m, k], b [k, n], sum? [m, n] → y [m, n]: y = a·b in units of rows, which are bitwise identical "
         "in a larger product, or y = sum + a·b in the compute type, with units of k added in order",
     .infer = infer_product,
     .decompose = decompose_product,
     .samples = product_samples,
     .cost = detail::product_cost,
     // The partial sum counts as one more addend, and so does each unit after the first.
     .roundings =
         [](std::span<const Operand> in, std::span<const Operand>, const Attrs& attrs) {
           const auto& p = attrs.as<MatmulInUnitsAttrs>();
           const std::int64_t k = in[0].shape()[1], units = p.along_k ? (k + p.unit - 1) / p.unit : 0;
           return static_cast<double>(k + units);
         },
     .recompute = Recompute::costly,
     .strided_results = true,
     .inplace = {{0, 2}}});

}  // namespace tg
