// Splits tensors along an axis (views) and joins them (copies).
#include "ops/common.h"
#include "ops/index.h"

namespace tg {

namespace {

using Sizes = std::vector<std::int64_t>;

struct SplitAttrs {
  std::int64_t axis;
  Sizes sizes;
  void fields(auto&& field) const {
    std::string text;
    for (std::int64_t s : sizes) text += (text.empty() ? "" : ", ") + std::to_string(s);
    field("axis", axis), field("sizes", text);
  }
};

std::vector<OutSpec> infer_split(std::span<const Operand> in, const Attrs& attrs) {
  detail::require_operands(in, 1);
  const auto& a = attrs.as<SplitAttrs>();
  const std::int64_t size = in[0].shape()[static_cast<int>(a.axis)];
  std::vector<OutSpec> out;
  std::int64_t start = 0;
  for (std::int64_t s : a.sizes) {
    if (s < 0) throw ShapeError("a size is negative: " + std::to_string(s));
    const std::int64_t stop = add_sizes(start, s);
    out.push_back({in[0].dtype, slice(in[0].layout, a.axis, start, stop), 0});
    start = stop;
  }
  if (start != size)
    throw ShapeError("the sizes add up to " + std::to_string(start) + ", the axis has " +
                     std::to_string(size));
  return out;
}

std::vector<OutSpec> infer_concat(std::span<const Operand> in, const Attrs& attrs) {
  detail::require_operands(in, 1, SIZE_MAX);
  const int axis = static_cast<int>(attrs.as<AxisAttrs>().axis);
  Shape shape = in[0].shape();
  shape[axis] = 0;
  for (const Operand& x : in) {
    if (x.dtype != in[0].dtype) throw DTypeError("the tensors differ in dtype");
    Shape rest = x.shape();
    if (rest.size() == shape.size()) rest[axis] = shape[axis];
    if (rest != shape)
      throw ShapeError("the tensors may differ in size along axis " + std::to_string(axis) + " only");
    shape[axis] = add_sizes(shape[axis], x.shape()[axis]);
  }
  return detail::row_major_output(in[0].dtype, shape);
}

std::vector<Sample> concat_samples() {
  const auto along = [](std::int64_t axis) {
    return [axis](std::span<const Tensor> x) { return concat({x.begin(), x.end()}, axis); };
  };
  const auto twice = [](std::span<const Tensor> x) { return concat({x[0], x[0]}, -1); };
  const auto stacked = [](std::span<const Tensor> x) { return stack({x[0], x[1]}, 1); };
  const auto padded = [](std::span<const Tensor> x) { return pad(x[0], {1, 0}, {0, 2}, 0.5); };
  return {{"rows", {{{2, 3}}, {{1, 3}}, {{0, 3}}}, along(0)},
          {"columns", {{{2, 2, 3}}, {{2, 4, 3}}}, along(1)},
          {"twice the same", {{{2, 3}}}, twice},
          {"stack", {{{2, 3}}, {{2, 3}}}, stacked},
          {"pad", {{{2, 3}}}, padded},
          {"pad, where it lands",
           {{.shape = {2, 2}, .values = {1, 2, 3, 4}}},
           padded,
           Sample::Expected{{{.5, .5, .5, .5, 1, 2, .5, .5, 3, 4, .5, .5}}, {{1, 1, 1, 1}}}}};
}

std::vector<Sample> split_samples() {
  const auto three = [](std::span<const Tensor> x) { return split(x[0], {1, 3, 2}, 1); };
  const auto last = [](std::span<const Tensor> x) { return split(x[0], {2, 0, 4}, -1)[2]; };
  return {{"three", {{{2, 6, 3}}}, three},
          {"one is used", {{{4, 6}}}, last},
          {"chunk", {{{7, 2}}}, [](auto x) { return chunk(x[0], 3, 0); }},
          {"unbind", {{{3, 2}}}, [](auto x) { return unbind(x[0], 0); }}};
}

}  // namespace

const Op& split_op = *define_op({.name = "split",
                                 .doc = "x → y₁, y₂, …: an axis split into parts of the given sizes",
                                 .infer = infer_split,
                                 .vjp = [](const Backprop& g) -> Tensors {
                                   Tensors z;
                                   for (std::size_t i = 0; i < g.z.size(); ++i)
                                     z.push_back(g.z[i].defined() ? g.z[i] : detail::zeros_view(g.out[i]));
                                   return {concat(z, g.attrs.as<SplitAttrs>().axis)};
                                 },
                                 .samples = split_samples,
                                 .view = true});

const Op& concat_op =
    *define_op({.name = "concat",
                .doc = "x₁, x₂, … → y: the tensors joined along an axis",
                .infer = infer_concat,
                .vjp = [](const Backprop& g) -> Tensors {
                  const std::int64_t axis = g.attrs.as<AxisAttrs>().axis;
                  Sizes sizes;
                  for (const Tensor& x : g.in) sizes.push_back(x.size(axis));
                  return split(g.z[0], sizes, axis);
                },
                .samples = concat_samples,
                .recompute = Recompute::cheap,
                .join_axis = [](const Attrs& a) { return static_cast<int>(a.as<AxisAttrs>().axis); }});

namespace {

// Limits the number of parts. Each part is a value of the graph and needs about 200 bytes.
void check_parts(const TensorArg& x, std::int64_t parts, const char* what) {
  constexpr std::int64_t most = std::int64_t{1} << 20;
  if (parts > most)
    throw ShapeError(in_context("[" + std::string(what) + "] " + x.tensor().text() + " would give " +
                                    std::to_string(parts) + " tensors, the most are " + std::to_string(most),
                                x.where()));
}

}  // namespace

std::vector<Tensor> split(TensorArg x, const Sizes& sizes, std::int64_t axis) {
  return record_all(split_op, {x}, SplitAttrs{detail::axis_of(x, axis, "split"), sizes});
}

std::vector<Tensor> chunk(TensorArg x, std::int64_t n, std::int64_t axis) {
  const std::int64_t a = detail::axis_of(x, axis, "chunk");
  if (n < 1)
    throw ShapeError(
        in_context("[chunk] got " + std::to_string(n) + " chunks, expected at least 1", x.where()));
  const std::int64_t size = x.tensor().size(a), each = size == 0 ? 1 : (size - 1) / n + 1;
  check_parts(x, size == 0 ? n : (size - 1) / each + 1, "chunk");
  Sizes sizes;
  for (std::int64_t left = size; left > 0; left -= each) sizes.push_back(std::min(each, left));
  if (sizes.empty()) sizes.assign(static_cast<std::size_t>(n), 0);
  return split(x, sizes, a);
}

std::vector<Tensor> unbind(TensorArg x, std::int64_t axis) {
  const Scope scope(x);
  const std::int64_t a = detail::axis_of(x, axis, "unbind");
  check_parts(x, x.tensor().size(a), "unbind");
  std::vector<Tensor> parts = split(x, Sizes(static_cast<std::size_t>(x.tensor().size(a)), 1), a);
  for (Tensor& t : parts) t = squeeze(t, a);
  return parts;
}

Tensor concat(const std::vector<Tensor>& parts, std::int64_t axis, Where where) {
  const Tensor first = detail::first_of(parts, "concat", where);
  const Scope scope("", where);
  DType dtype = first.dtype();
  for (const Tensor& t : parts) dtype = detail::promote(dtype, t.dtype());
  std::vector<Tensor> in;
  for (const Tensor& t : parts) in.push_back(cast(t, dtype));
  return first.graph().record(concat_op, in, AxisAttrs{detail::axis_of({first, where}, axis, "concat")},
                              where)[0];
}

Tensor stack(const std::vector<Tensor>& parts, std::int64_t axis, Where where) {
  const Tensor first = detail::first_of(parts, "stack", where);
  const Scope scope("", where);
  for (const Tensor& t : parts)
    if (t.shape() != first.shape())
      throw ShapeError(
          in_context("[stack] the tensors differ in shape: " + first.text() + " and " + t.text(), where));
  const std::int64_t a = detail::axis_of({unsqueeze(first, 0), where}, axis, "stack");
  std::vector<Tensor> in;
  for (const Tensor& t : parts) in.push_back(unsqueeze(t, a));
  return concat(in, a, where);
}

Tensor pad(TensorArg x, const Dims& before, const Dims& after, double value) {
  const Scope scope(x);
  Tensor t = x.tensor();
  const auto refuse = [&](const std::string& why) {
    return ShapeError(in_context(
        "[pad] " + why + ": " + t.text() + " by " + before.text() + " before and " + after.text() + " after",
        x.where()));
  };
  if (before.size() != t.rank() || after.size() != t.rank())
    throw refuse("needs one number of elements per axis");
  const Tensor filling = full(t.graph(), {}, value, t.dtype());
  for (int a = 0; a < before.size(); ++a) {
    if (before[a] < 0 || after[a] < 0) throw refuse("cannot remove elements; slice() does");
    if (before[a] > max_elements || after[a] > max_elements) throw refuse("more than 2^53 elements");
    std::vector<Tensor> parts;
    const auto fill = [&](std::int64_t n) {
      Shape shape = t.shape();
      shape[a] = n;
      if (n > 0) parts.push_back(expand(filling, shape));
    };
    fill(before[a]);
    parts.push_back(t);
    fill(after[a]);
    if (parts.size() > 1) t = concat(parts, a);
  }
  return t;
}

}  // namespace tg
