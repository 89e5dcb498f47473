// arange returns evenly spaced numbers. The ops for triangles and reversed axes use it.
#include <algorithm>
#include <cmath>

#include "ops/common.h"
#include "ops/index.h"

namespace tg {

const Op& arange_op = *define_op(
    {.name = "arange",
     .doc = "→ y [count]: yᵢ = start + i·step",
     .infer =
         [](std::span<const Operand>, const Attrs& attrs) {
           const auto& a = attrs.as<ArangeAttrs>();
           if (a.dtype == boolean) throw DTypeError("needs numbers, not booleans");
           if (!is_float(a.dtype) && (a.start != std::trunc(a.start) || a.step != std::trunc(a.step)))
             throw DTypeError("start and step must be whole numbers for integers");
           const double last = a.start + a.step * static_cast<double>(a.count - 1);
           if (a.count > 0 && (!holds(a.dtype, a.start) || !holds(a.dtype, last)))
             throw DTypeError(std::string(name_of(a.dtype)) + " cannot hold numbers from " +
                              detail::attr_text(a.start) + " to " + detail::attr_text(last));
           return detail::row_major_output(a.dtype, {a.count});
         },
     .not_differentiable = "it has no inputs",
     .samples = []() -> std::vector<Sample> {
       return {{"times", {{{5}}}, [](auto x) { return x[0] * arange(x[0].graph(), 1, 11, 2, x[0].dtype()); }},
               {"tril", {{{2, 3, 4}}}, [](auto x) { return tril(x[0], 1); }},
               {"triu", {{{4, 3}}}, [](auto x) { return triu(x[0], -1); }},
               {"flip", {{{3, 4}}}, [](auto x) { return flip(x[0], 1); }}};
     },
     .recompute = Recompute::cheap});

Tensor arange(Graph& graph, double start, double stop, double step, DType dtype, Where where) {
  const double count = std::ceil((stop - start) / step);
  if (!(count >= 0 && count <= static_cast<double>(max_elements) && std::isfinite(step)))
    throw ShapeError(in_context("[arange] steps of " + detail::attr_text(step) + " do not lead from " +
                                    detail::attr_text(start) + " to " + detail::attr_text(stop),
                                where));
  return graph.record(arange_op, {}, ArangeAttrs{start, step, static_cast<std::int64_t>(count), dtype},
                      where)[0];
}

namespace {

// Returns x if column - row is on the kept side of `diagonal`, otherwise 0. If the compute type of x can
// represent all row and column numbers exactly, they have that type. One fused step then computes the result.
Tensor triangle(const TensorArg& x, std::int64_t given, bool lower) {
  const Scope scope(x);
  const Tensor& t = x.tensor();
  if (t.rank() < 2)
    throw ShapeError(in_context(
        std::string(lower ? "[tril]" : "[triu]") + " needs at least two dimensions, got " + t.text(),
        x.where()));
  const std::int64_t rows = t.size(-2), columns = t.size(-1);
  const std::int64_t diagonal =
      std::clamp(given, -rows, columns);  // values beyond these limits have the same effect
  const bool exact = std::max(rows, columns) + std::abs(diagonal) < (1 << 24);
  const DType count = exact && is_float(t.dtype()) ? compute_type(t.dtype()) : i64;
  const auto upto = [&](std::int64_t n, double first) {
    return arange(t.graph(), first, first + static_cast<double>(n), 1, count);
  };
  const Tensor row = unsqueeze(upto(rows, static_cast<double>(diagonal)), 1), column = upto(columns, 0);
  return where(lower ? less_equal(column, row) : greater_equal(column, row), t, 0);
}

}  // namespace

Tensor tril(TensorArg x, std::int64_t diagonal) {
  return triangle(x, diagonal, true);
}

Tensor triu(TensorArg x, std::int64_t diagonal) {
  return triangle(x, diagonal, false);
}

Tensor flip(TensorArg x, std::int64_t axis) {
  const Scope scope(x);
  const std::int64_t a = detail::axis_of(x, axis, "flip");
  const auto n = static_cast<double>(x.tensor().size(a));
  return index_select(x, a, arange(x.tensor().graph(), n - 1, -1, -1));
}

}  // namespace tg
