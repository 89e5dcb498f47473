// cross_entropy of logits x [..., V] and classes t [...]. With ξ = log Σ exp x and smoothing ε, each row has
//
//      loss = ξ - (1 - ε)·x_t - ε·mean(x)   and   z_x = z·(exp(x - ξ) - (1 - ε)·[· = t] - ε/V).
//
// Forward and backward each read the logits once. The forward saves ξ as two numbers, c = max x and log π =
// log Σ exp(x - c). As a single number, ξ would lose log π if c is large. The only other tensor with the size
// of the logits is z_x. It may overwrite the logits.
#include "ops/cross_entropy.h"

#include <numbers>

#include "ops/common.h"

namespace tg {

extern const Op &cross_entropy_op, &cross_entropy_backward_op;

namespace {

void check_targets(const Operand& x, const Operand& targets) {
  detail::require_float(x.dtype);
  detail::check_rank_at_least(x, 1);
  detail::require_index(targets.dtype);
  if (targets.shape() != detail::without_last_axis(x.shape()))
    throw ShapeError("needs logits [..., V] and targets [...]");
}

Tensors decompose_cross_entropy(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& a = attrs.as<CrossEntropyAttrs>();
  const detail::LoweredLogits x(in[0]);
  const Tensor counts = not_equal(cast(in[1], i64), static_cast<double>(a.ignore_index)),
               log_sum = squeeze(x.log_sum(), -1);
  Tensor loss =
      log_sum - (1 - a.smoothing) * sum(where(detail::is_target(in[0], in[1]), x.x_minus_c, 0), {-1});
  if (a.smoothing != 0) loss = loss - a.smoothing * mean(x.x_minus_c, {-1});
  return {where(counts, loss, 0), where(counts, squeeze(x.top, -1), 0), where(counts, log_sum, 0)};
}

// Depends only on x and z. It recomputes c and π from x, so a second derivative does not need gradients of c
// and π.
Tensors decompose_backward(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& a = attrs.as<CrossEntropyAttrs>();
  const detail::LoweredLogits x(in[0]);
  const Tensor counts = not_equal(cast(in[1], i64), static_cast<double>(a.ignore_index));
  const Tensor p = exp(x.x_minus_c - x.log_sum());
  const Tensor target = cast(detail::is_target(in[0], in[1]), p.dtype()) * (1 - a.smoothing);
  const Tensor z = unsqueeze(where(counts, in[4], 0), -1);
  return {cast(z * (p - target - a.smoothing / static_cast<double>(p.size(-1))), in[0].dtype())};
}

Tensors loss_of_rows(const Tensor& x, const Tensor& targets, const CrossEntropyAttrs& a) {
  return record_all(cross_entropy_op, {x, targets}, a);
}

constexpr Fill classes{Fill::index, 0, 7};

// Each row has one large logit, at a different position per row. The class of the first row is this position.
// The class of each other row is the position before it. If a kernel misses the maximum of a row, exp of the
// logit overflows.
Sample one_large_logit() {
  constexpr std::size_t n = 100;
  constexpr double logit = 1e4;
  std::vector<double> x(n * n, 0.0), z(n * n, 0.0), targets(n), loss(n, logit);
  for (std::size_t i = 0; i < n; ++i) {
    x[i * n + i] = logit;
    z[i * n + i] = 1;
    targets[i] = i == 0 ? 0 : static_cast<double>(i - 1);
    z[i * n + static_cast<std::size_t>(targets[i])] -= 1;
  }
  loss[0] = 0;
  return {"one large logit",
          {{.shape = {n, n}, .values = x},
           {.shape = {n}, .fill = {Fill::index}, .dtype = i64, .values = targets}},
          [](auto t) { return cross_entropy(t[0], t[1], {.reduction = Reduction::none}); },
          Sample::Expected{{loss}, {z}}};
}

// Roundings of x − c, its exponential, their sum, its logarithm, and the smoothing.
double cross_entropy_roundings(std::span<const Operand> in, std::span<const Operand>, const Attrs&) {
  return static_cast<double>(in[0].shape().back()) + 6;
}

}  // namespace

const Op& cross_entropy_op = *define_op(
    {.name = "cross_entropy",
     .doc = "x [..., V], t [...] → loss, c, log π: loss = ξ − (1 − ε)·x_t − ε·mean(x) with ξ = log Σ exp x = "
            "c + log π, c = max x and smoothing ε; 0 if t is ignored",
     .infer =
         [](std::span<const Operand> in, const Attrs& a) {
           detail::require_operands(in, 2);
           a.as<CrossEntropyAttrs>();
           check_targets(in[0], in[1]);
           const OutSpec row{compute_type(in[0].dtype), row_major(in[1].shape())};
           return std::vector<OutSpec>{row, row, row};
         },
     .vjp = [](const Backprop& g) -> Tensors {
       if (g.z[1].defined() || g.z[2].defined())
         throw GradientError("the log-sum of a cross-entropy has no separate gradient");
       return {record(cross_entropy_backward_op, {g.in[0], g.in[1], g.out[1], g.out[2], g.z[0]}, g.attrs),
               Tensor()};
     },
     .decompose = decompose_cross_entropy,
     .samples = []() -> std::vector<Sample> {
       return {
           {"mean", {{{2, 3, 7}}, {{2, 3}, classes, i64}}, [](auto x) { return cross_entropy(x[0], x[1]); }},
           {"ignore and smooth",
            {{{5, 7}}, {{5}, classes, i32}},
            [](auto x) {
              return cross_entropy(x[0], x[1],
                                   {.ignore_index = 2, .reduction = Reduction::none, .label_smoothing = 0.1});
            }},
           one_large_logit(),
           // The loss of each of two rows is log 4. The third row does not count.
           {"mean without ignored targets",
            {{.shape = {3, 4}, .values = std::vector<double>(12, 0)},
             {.shape = {3}, .fill = classes, .dtype = i64, .values = {1, 3, -100}}},
            [](auto x) { return cross_entropy(x[0], x[1]); },
            Sample::Expected{{{2 * std::numbers::ln2}},
                             {{.125, -.375, .125, .125, .125, .125, .125, -.375, 0, 0, 0, 0}}}}};
     },
     .cost = detail::flops_each<20>,
     .roundings = cross_entropy_roundings});

const Op& cross_entropy_backward_op = *define_op(
    {.name = "cross_entropy_backward",
     .doc = "x [..., V], t [...], c, log π, z → z_x: z_x = z·(exp(x − ξ) − (1 − ε)·[· = t] − ε/V) "
            "with ξ = c + log π",
     .infer =
         [](std::span<const Operand> in, const Attrs& a) {
           detail::require_operands(in, 5);
           a.as<CrossEntropyAttrs>();
           check_targets(in[0], in[1]);
           for (const Operand& x : in.subspan(2)) {  // c, log π and z
             if (x.shape() != in[1].shape()) throw ShapeError("needs a number for each row");
             if (x.dtype != compute_type(in[0].dtype))
               throw DTypeError("needs c, log π and z in the compute type");
           }
           return detail::row_major_output(in[0].dtype, in[0].shape());
         },
     .decompose = decompose_backward,
     .samples = []() -> std::vector<Sample> {
       return {{"smooth", {{{5, 7}}, {{5}, classes, i64}, {{5}}}, [](auto x) {
                  const CrossEntropyAttrs a{2, 0.1};
                  const Tensors rows = loss_of_rows(x[0], x[1], a);
                  return Tensors{record(cross_entropy_backward_op,
                                        {x[0], x[1], rows[1], rows[2], cast(x[2], rows[1].dtype())}, a)};
                }}};
     },
     .cost = detail::flops_each<20>,
     // Roundings of ξ, exp(x − ξ), the smoothing, and z.
     .roundings = [](std::span<const Operand>, std::span<const Operand>, const Attrs&) { return 6.; },
     .inplace = {{0, 0}}});

Tensor cross_entropy(TensorArg logits, TensorArg targets, const CrossEntropyOptions& o) {
  const Scope scope(logits);
  detail::check_smoothing("cross_entropy", o.label_smoothing, logits.where());
  const Tensor loss = loss_of_rows(logits.tensor(), targets.tensor(), {o.ignore_index, o.label_smoothing})[0];
  return detail::reduced(loss, targets.tensor(), o.reduction, o.ignore_index);
}

void detail::check_smoothing(const char* op, double smoothing, const Where& where) {
  check_options_at(where, op, {{"label_smoothing", smoothing, Range::between(0, 1)}});
}

detail::LoweredLogits::LoweredLogits(const Tensor& logits) {
  const Tensor x = cast(logits, compute_type(logits.dtype()));
  top = stop_gradient(max(x, {-1}, true));
  x_minus_c = x - top;
}
Tensor detail::LoweredLogits::log_sum() const {
  return log(sum(exp(x_minus_c), {-1}, true));
}

Tensor detail::is_target(const Tensor& logits, const Tensor& targets) {
  return equal(unsqueeze(cast(targets, i64), -1),
               arange(logits.graph(), 0, static_cast<double>(logits.size(-1))));
}

Tensor detail::reduced(const Tensor& loss, const Tensor& targets, Reduction reduction,
                       std::int64_t ignore_index) {
  if (reduction == Reduction::none) return loss;
  if (reduction == Reduction::sum) return sum(loss);
  const auto ignored = static_cast<double>(ignore_index);
  const Tensor t = holds(targets.dtype(), ignored) ? targets : cast(targets, i64);
  const Tensor counted = sum(cast(not_equal(t, ignored), loss.dtype()));
  return sum(loss) / maximum(counted, 1);
}

}  // namespace tg
