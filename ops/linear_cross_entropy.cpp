// linear_cross_entropy of rows x [n, c] with w [c, V] and classes t [n]. With the logits l = x·w, ξ = log Σ
// exp l, the smoothing ε and the z-loss factor λ, each row has
//
//      loss = ξ - (1 - ε)·l_t - ε·mean(l) + λ·ξ²   and   z_l = z·((1 + 2λξ)·exp(l - ξ) - (1 - ε)·[· = t] -
//      ε/V).
//
// The op computes these formulas without the terms ε·mean(l) and ε/V, which other ops add (mean(l) =
// x·mean(w)). It represents z_l as the product of one number per row and a matrix in the dtype of x,
//
//      z_l = z·h ⊛ G,
//
// so a kernel may divide the factors between h and G. Some kernels know ξ only after they have read all
// logits. They use exp(l - c), where c is a number per row. When ξ is known, they correct one element per
// row:
//
//      s = Σ exp(l - c), ξ = c + log s, h = (1 + 2λξ)/s, G = exp(l - c) - [· = t]·(1 - ε)/h.
//
// Other kernels use c = ξ and s = 1. In both cases z_x = z·h ⊛ (G·wᵀ) and z_w = (z·h ⊛ x)ᵀ·G, which are
// GEMMs.
//
// With chunks of rows, each chunk is a separate op, and a region around all chunks has a custom gradient.
// Each chunk writes its part of z_x and adds its product to z_w. Two GEMMs read the G of a chunk, and nothing
// reads it later. core/compile/order.cpp finds an order in which the next chunk reuses the memory of G.
// Chunks consist of whole units (matmul_in_units.h). All three GEMMs are computed per unit, even without
// chunks, so the results do not depend on the chunks.
#include <tilegrad/ops/linear_cross_entropy.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "ops/common.h"
#include "ops/cross_entropy.h"
#include "ops/matmul_in_units.h"

namespace tg {

extern const Op& linear_cross_entropy_op;

namespace {

bool is_head_product(const Shape& x, const Shape& w, const Shape& targets) {
  return x.size() == 2 && w.size() == 2 && targets.size() == 1 && x[1] == w[0] && targets[0] == x[0];
}

void check_head(const Operand& x, const Operand& w, const Operand& targets) {
  detail::require_float(x.dtype);
  if (w.dtype != x.dtype) throw DTypeError("x and w differ in dtype");
  detail::require_index(targets.dtype);
  if (!is_head_product(x.shape(), w.shape(), targets.shape()))
    throw ShapeError("needs x [n, c], w [c, V] and targets [n]");
}

// h for c = ξ. It must not be 0, because an element of G is divided by h.
Tensor head_factor(const Tensor& lse, double z_loss) {
  const Tensor h = 1 + 2 * z_loss * lse;
  return where(less(abs(h), least_row_factor), least_row_factor, h);
}

Tensors decompose_head(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& a = attrs.as<LinearCrossEntropyAttrs>();
  const Tensor l = cast(matmul_wide(in[0], in[1]), compute_type(in[0].dtype())), t = cast(in[2], i64);
  const Tensor counts = not_equal(t, static_cast<double>(a.ignore_index));
  const Tensor chosen = detail::is_target(l, t);
  const detail::LoweredLogits x(l);
  const Tensor log_sum = x.log_sum(), lse = squeeze(x.top + log_sum, -1);
  const Tensor loss = squeeze(log_sum, -1) - sum(where(chosen, x.x_minus_c, 0), {-1}) +
                      a.smoothing * sum(where(chosen, l, 0), {-1}) + a.z_loss * lse * lse;
  const Tensor h = head_factor(lse, a.z_loss);
  const Tensor G = exp(x.x_minus_c - log_sum) - where(chosen, unsqueeze((1 - a.smoothing) / h, -1), 0);
  return {where(counts, loss, 0), where(counts, h, 0),
          cast(where(unsqueeze(counts, -1), G, 0), in[0].dtype())};
}

[[noreturn]] void refuse_second_derivative() {
  throw GradientError(
      "linear_cross_entropy has only a first derivative: use cross_entropy of linear for higher ones");
}

// Whether w is stored column-major. It is if w is a view of the weight [V, c] of a language model head. z_w
// gets the same layout.
bool is_column_major(const Tensor& w) {
  return w.layout().strides[0] == 1 && w.layout().strides[1] > 1;
}

Tensor gemm_of_rows(const Tensor& a, const Tensor& b, std::int64_t unit) {
  return unit > 0 ? product_in_units_of_rows(a, b, unit) : matmul(a, b);
}

// Returns scaledᵀ·G. Adds the products of `unit` rows at a time, and the partial sum of z_w if it is defined.
Tensor weight_gradient(const Tensor& w, const Tensor& scaled, const Tensor& G, const Tensor& before,
                       std::int64_t unit) {
  if (!is_column_major(w)) return product_in_units_of_k(transpose(scaled, 0, 1), G, before, unit);
  const Tensor sum = before.defined() ? transpose(before, 0, 1) : Tensor();
  return transpose(product_in_units_of_k(transpose(G, 0, 1), scaled, sum, unit), 0, 1);
}

Tensors head_gradient(const Backprop& g) {
  if (g.z[1].defined() || g.z[2].defined()) refuse_second_derivative();
  const Tensor &x = g.in[0], &w = g.in[1], &G = g.out[2];
  const std::int64_t unit = g.attrs.as<LinearCrossEntropyAttrs>().unit;
  const Tensor f = unsqueeze(g.z[0] * g.out[1], 1);
  Tensors z(3);
  if (g.needed[0]) z[0] = cast(gemm_of_rows(G, transpose(w, 0, 1), unit) * f, x.dtype());
  if (g.needed[1]) {
    const Tensor scaled = cast(x * f, x.dtype());
    z[1] = unit > 0             ? cast(weight_gradient(w, scaled, G, {}, unit), w.dtype())
           : is_column_major(w) ? transpose(matmul(transpose(G, 0, 1), scaled), 0, 1)
                                : matmul(transpose(scaled, 0, 1), G);
  }
  return z;
}

// Returns the sizes of the chunks of n rows.
std::vector<std::int64_t> chunks_of(std::int64_t n, std::int64_t chunk_rows, std::int64_t unit) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t left = n; left > 0; left -= sizes.back())
    sizes.push_back(left < chunk_rows + unit ? left : chunk_rows);
  return sizes;
}

// `in` has x, w and the targets. `out` has the losses, and h and G of each chunk. `z` has the gradient of the
// losses, and zeros for the other outputs. The products G·wᵀ are written directly to their rows of z_x. One
// pass then scales all of z_x.
Tensors gradient_of_chunks(const Tensors& in, const Tensors& out, const Tensors& z, std::int64_t unit) {
  const Tensor &x = in[0], &w = in[1];
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 1; i < out.size(); ++i) {
    const Node& none = x.graph().node_of(z[i].id());
    if (none.op != &full_op || none.attrs.as<FullAttrs>().value != 0) refuse_second_derivative();
    if (i % 2 == 1) sizes.push_back(out[i].size(0));
  }
  const Tensors xs = split(x, sizes), zs = split(z[0], sizes);
  Tensors hs, products;
  Tensor z_w;  // partial sum
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const Tensor &h = out[1 + 2 * i], &G = out[2 + 2 * i];
    hs.push_back(h);
    products.push_back(gemm_of_rows(G, transpose(w, 0, 1), unit));
    const Tensor scaled = cast(xs[i] * unsqueeze(zs[i] * h, 1), x.dtype());
    z_w = weight_gradient(w, scaled, G, z_w, unit);
  }
  return {cast(concat(products) * unsqueeze(z[0] * concat(hs), 1), x.dtype()), cast(z_w, w.dtype()),
          Tensor()};
}

// Computes the losses of x [n, c] and their gradients in chunks of rows.
Tensor losses_in_chunks(const Tensor& x, const Tensor& w, const Tensor& t,
                        const LinearCrossEntropyAttrs& attrs, std::int64_t chunk_rows) {
  Graph& graph = x.graph();
  const auto first = static_cast<NodeId>(graph.nodes().size());
  const std::int64_t unit = attrs.unit;
  const std::vector<std::int64_t> sizes = chunks_of(x.size(0), chunk_rows, unit);
  const Tensors xs = split(x, sizes), ts = split(t, sizes);
  Tensors losses, kept;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const Tensors made = record_all(linear_cross_entropy_op, {xs[i], w, ts[i]}, attrs);
    losses.push_back(made[0]);
    kept.insert(kept.end(), {made[1], made[2]});
  }
  const Tensor loss = concat(losses);
  CustomGradient region{first,
                        static_cast<NodeId>(graph.nodes().size() - 1),
                        {x.id(), w.id(), t.id()},
                        {loss.id()},
                        [unit](const Tensors& in, const Tensors& out, const Tensors& z) {
                          return gradient_of_chunks(in, out, z, unit);
                        }};
  for (const Tensor& k : kept) region.out.push_back(k.id());
  graph.add_custom_gradient(std::move(region));
  return loss;
}

constexpr Fill seven_classes{Fill::index, 0, 7};

std::vector<Sample> head_samples() {
  const auto call = [](LinearCrossEntropyOptions o) {
    return [o](std::span<const Tensor> x) { return linear_cross_entropy(x[0], x[1], x[2], o); };
  };
  return {
      {"mean", {{{2, 3, 4}}, {{4, 7}}, {{2, 3}, seven_classes, i64}}, call({})},
      {"ignore and smooth",
       {{{5, 4}}, {{4, 7}}, {{5}, seven_classes, i32}},
       call({.ignore_index = 2, .reduction = Reduction::none, .label_smoothing = 0.1})},
      {"z-loss",
       {{{5, 4}}, {{4, 7}}, {{5}, seven_classes, i64}},
       call({.reduction = Reduction::sum, .z_loss = 0.05})},
      {"in chunks",
       {{{133, 4}}, {{4, 7}}, {{133}, seven_classes, i64}},
       call({.ignore_index = 2, .label_smoothing = 0.1, .z_loss = 0.05, .chunk_rows = 2, .unit_rows = 1})},
      {"tied", {{{5, 4}}, {{7, 4}}, {{5}, seven_classes, i64}}, [](auto x) {
         return linear_cross_entropy(x[0], transpose(x[1], 0, 1), x[2]);
       }}};
}

std::int64_t rounded_up(std::int64_t n, std::int64_t unit) {
  return (n / unit + (n % unit != 0)) * unit;
}

}  // namespace

std::int64_t linear_cross_entropy_unit(std::int64_t classes) {
  if (classes < 1) throw Error("[linear_cross_entropy] " + std::to_string(classes) + " classes");
  constexpr std::uint64_t logits = 1 << 25, least = 4096;
  return static_cast<std::int64_t>(
      std::bit_ceil(std::max(least, logits / static_cast<std::uint64_t>(classes))));
}

const Op& linear_cross_entropy_op = *define_op(
    {.name = "linear_cross_entropy",
     .doc = "x [n, c], w [c, V], t [n] → loss, h, G: with l = x·w and ξ = log Σ exp l, loss = ξ − (1 − "
            "ε)·l_t + λ·ξ² and h ⊛ G = (1 + 2λξ)·exp(l − ξ) − (1 − ε)·[· = t]; 0 if t is ignored",
     .infer =
         [](std::span<const Operand> in, const Attrs& a) {
           detail::require_operands(in, 3);
           a.as<LinearCrossEntropyAttrs>();
           check_head(in[0], in[1], in[2]);
           const OutSpec row{compute_type(in[0].dtype), row_major(in[2].shape())};
           const Shape logits{in[0].shape()[0], in[1].shape()[1]};
           return std::vector<OutSpec>{row, row, {in[0].dtype, row_major(logits)}};
         },
     .vjp = head_gradient,
     .decompose = decompose_head,
     .samples = head_samples,
     .cost = [](std::span<const Operand> in, std::span<const Operand>, const Attrs&) -> Cost {
       const Shape &x = in[0].shape(), &w = in[1].shape();
       return {.flops = static_cast<double>(x[0]) * static_cast<double>(w[1]) *
                        (2 * static_cast<double>(x[1]) + 20)};
     },
     // The roundings of a logit, followed by the roundings of cross_entropy.
     .roundings =
         [](std::span<const Operand> in, std::span<const Operand>, const Attrs&) {
           const Shape &x = in[0].shape(), &w = in[1].shape();
           return static_cast<double>(x[1] + w[1]) + 8;
         },
     .first_order_only = true});

Tensor linear_cross_entropy(TensorArg x, TensorArg w, TensorArg targets, const LinearCrossEntropyOptions& o) {
  const Scope scope(x);
  detail::check_smoothing("linear_cross_entropy", o.label_smoothing, x.where());
  detail::check_options_at(x.where(), "linear_cross_entropy", {{"z_loss", o.z_loss, Range::at_least(0)}});
  const Tensor rows = x.tensor().rank() == 2 ? x.tensor() : reshape(x, {-1, x.tensor().size(-1)});
  const Tensor t = targets.tensor().rank() == 1 ? targets.tensor() : reshape(targets, {-1});
  LinearCrossEntropyAttrs attrs{o.ignore_index, o.label_smoothing, o.z_loss};
  const std::int64_t n = rows.size(0);
  std::int64_t chunk = 0;
  // If operands have wrong shapes, no chunks are used, so the error contains the caller's shapes.
  if (is_head_product(rows.shape(), w.tensor().shape(), t.shape())) {
    const std::int64_t asked = o.unit_rows > 0
                                   ? std::clamp<std::int64_t>(n, 1, o.unit_rows)
                                   : linear_cross_entropy_unit(std::max<std::int64_t>(1, w.tensor().size(1))),
                       unit = rounded_up(asked, least_unit);
    if (n >= 2 * unit) attrs.unit = unit;
    if (n >= 2 * unit && o.chunk_rows > 0) chunk = std::max(o.chunk_rows / unit, std::int64_t{1}) * unit;
  }
  constexpr std::int64_t most_chunks = 1024;
  if (o.chunk_rows < 0 || o.unit_rows < 0 || (chunk > 0 && n / chunk > most_chunks))
    throw Error(in_context("[linear_cross_entropy] chunk_rows is " + std::to_string(o.chunk_rows) +
                               " and unit_rows " + std::to_string(o.unit_rows) +
                               ", expected 0 or more, and at most " + std::to_string(most_chunks) +
                               " chunks of " + std::to_string(n) + " rows",
                           x.where()));
  Tensor loss = chunk > 0 && chunk < n ? losses_in_chunks(rows, w.tensor(), t, attrs, chunk)
                                       : record_all(linear_cross_entropy_op, {rows, w, t}, attrs)[0];
  if (o.label_smoothing != 0) {
    const Tensor mean_weight = mean(cast(w, loss.dtype()), {1});
    const Tensor mean_logit = sum(rows * mean_weight, {1});
    const Tensor counts = not_equal(cast(t, i64), static_cast<double>(o.ignore_index));
    loss = loss - where(counts, o.label_smoothing * mean_logit, 0);
  }
  return detail::reduced(reshape(loss, targets.tensor().shape()), targets.tensor(), o.reduction,
                         o.ignore_index);
}

}  // namespace tg
