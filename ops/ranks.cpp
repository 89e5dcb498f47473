// The collective ops of ranks.h. x_r is the value on rank r of N ranks:
//      all_reduce           y = Σ_s x_s                      z_x = z_y
//      all_reduce_gradient  y = x                            z_x = all_reduce(z_y)
//      all_gather           y = x_0 ‖ … ‖ x_(N−1)            z_x = reduce_scatter(z_y)
//      reduce_scatter       y_r = shard r of Σ_s x_s         z_x = all_gather(z_y)
//      all_to_all           shard s of y_r = shard r of x_s  z_x = all_to_all(z_y)
//      ppermute             y_r = x_(r − shift mod N)        z_x = ppermute(z_y, −shift)
//      local_shard          y_r = shard r of x               z_x = all_gather(z_y)
// The ops divide axis 0, so shards are contiguous. The functions move other axes to the front.
#include <tilegrad/ops/ranks.h>

#include "core/graph/op_attrs.h"
#include "ops/common.h"

namespace tg {

extern const Op &all_gather_op, &reduce_scatter_op;

namespace {

// The size of axis 0 of a result, compared with the operand.
enum class Sizes { kept, times_ranks, divided };

std::vector<OutSpec> infer_list(std::span<const Operand> in, const Attrs& attrs, Sizes sizes, bool divides,
                                bool adds) {
  const auto& a = attrs.as<RankAttrs>();
  detail::require_operands(in, 1, SIZE_MAX);
  if (a.ranks < 1)
    throw ShapeError("the number of ranks is " + std::to_string(a.ranks) + ", expected at least 1");
  std::vector<OutSpec> out;
  out.reserve(in.size());
  for (const Operand& x : in) {
    if (adds) detail::require_float(x.dtype);
    Shape shape = x.shape();
    if (divides || sizes != Sizes::kept) detail::check_rank_at_least(x, 1);
    if (divides && shape[0] % a.ranks != 0)
      throw ShapeError("the size of the axis, " + std::to_string(shape[0]) + ", is not a multiple of " +
                       std::to_string(a.ranks) + " ranks");
    if (sizes == Sizes::times_ranks && shape[0] > max_elements / a.ranks)
      throw ShapeError("more than 2^53 elements on " + std::to_string(a.ranks) + " ranks");
    if (sizes == Sizes::times_ranks) shape[0] *= a.ranks;
    if (sizes == Sizes::divided) shape[0] /= a.ranks;
    out.push_back({adds && a.wide ? compute_type(x.dtype) : x.dtype, row_major(shape)});
  }
  return out;
}

template <Sizes sizes, bool divides, bool adds>
std::vector<OutSpec> infer_of(std::span<const Operand> in, const Attrs& attrs) {
  return infer_list(in, attrs, sizes, divides, adds);
}

// Returns the gradients of a list of tensors. They are f(z, attributes) for the defined z, cast to the dtypes
// of the inputs.
template <class F>
Tensors each_that_arrives(const Backprop& g, F f) {
  Tensors z, arrived;
  for (std::size_t i = 0; i < g.in.size(); ++i)
    if (g.z[i].defined()) arrived.push_back(cast(g.z[i], g.in[i].dtype()));
  if (!arrived.empty()) arrived = f(arrived, g.attrs.as<RankAttrs>());
  for (std::size_t i = 0, next = 0; i < g.in.size(); ++i)
    z.push_back(g.z[i].defined() ? arrived[next++] : Tensor());
  return z;
}

// Records the op on contiguous tensors, because GPUs exchange contiguous memory.
Tensors recorded(const Op& op, const TensorList& xs, const RankAttrs& attrs, Where where = Where::current()) {
  Tensors pieces;
  for (const Tensor& x : xs) pieces.push_back(contiguous({x, where}));
  return xs[0].graph().record(op, pieces, attrs, where);
}

// The gradient of an op, if the gradient is `op` with the same attributes.
Tensors gradient_by(const Op& op, const Backprop& g) {
  return each_that_arrives(g, [&](const Tensors& z, const RankAttrs& a) { return recorded(op, z, a); });
}

bool is_alone(const TensorList& xs, int ranks, const std::string& what, Where where) {
  if (ranks < 1)
    throw ShapeError(in_context(
        "[" + what + "] the number of ranks is " + std::to_string(ranks) + ", expected at least 1", where));
  for (const Tensor& x : xs)
    if (!x.defined()) throw Error(in_context("[" + what + "] got an undefined tensor", where));
  return ranks == 1;
}

TensorList widened(const TensorList& xs, bool wide) {
  TensorList ys;
  for (const Tensor& x : xs) ys.push_back(wide ? cast(x, compute_type(x.dtype())) : x);
  return ys;
}

// Swaps axis 0 and `axis`.
Tensors swapped(std::int64_t axis, const Tensors& xs, Where where) {
  Tensors ys;
  for (const Tensor& x : xs) ys.push_back(axis == 0 ? x : transpose({x, where}, 0, axis));
  return ys;
}

// Throws the errors of a call of the op, without recording anything in the graph of the tensors.
void check_call(const Op& op, const TensorList& xs, const RankAttrs& attrs, std::int64_t axis, Where where) {
  Graph apart;
  Tensors same;
  for (const Tensor& x : xs)
    same.push_back(apart.input(std::to_string(same.size()), x.shape(), x.dtype(), where));
  recorded(op, swapped(axis, same, where), attrs, where);
}

// Moves `axis` to the front and records a call on a list. With one rank, returns the list.
Tensors along(const Op& op, const TensorList& xs, const RankAttrs& attrs, std::int64_t axis, Where where) {
  const bool alone = is_alone(xs, attrs.ranks, op.name, where);
  detail::first_of(xs, op.name, where);
  if (alone) {
    check_call(op, xs, attrs, axis, where);
    return widened(xs, attrs.wide);
  }
  return swapped(axis, recorded(op, swapped(axis, xs, where), attrs, where), where);
}

// Samples call the ops directly with one rank. The functions of ranks.h record nothing for one rank.
std::vector<Sample> samples_of(const Op& op, const RankAttrs& attrs) {
  const auto call = [&op, attrs](std::span<const Tensor> x) {
    return recorded(op, {x.begin(), x.end()}, attrs);
  };
  return {{"one", {{{6, 4}}}, call},
          {"list", {{{4, 3}}, {{2}}, {{0, 5}}, {{2, 3, 2}}}, call},
          {"transposed", {{{3, 4}}}, [&op, attrs](std::span<const Tensor> x) {
             return recorded(op, {transpose(x[0], 0, 1)}, attrs);
           }}};
}

// Defines an op on a list of tensors, with one result per tensor. `sample` has the attributes for its
// samples.
const Op* define_list(Op op, const RankAttrs& sample = {.ranks = 1}) {
  op.samples = [name = op.name, sample] { return samples_of(*find_op(name), sample); };
  op.each = {1, 1};
  return define_op(std::move(op));
}

double sum_roundings(std::span<const Operand>, std::span<const Operand>, const Attrs& a) {
  return a.as<RankAttrs>().ranks;
}

}  // namespace

const Op& all_reduce_op = *define_list(
    {.name = "all_reduce",
     .doc = "x₁, … → y₁, …: yᵢ = Σ of xᵢ over all ranks, by a fixed tree",
     .infer = infer_of<Sizes::kept, false, true>,
     .vjp = [](const Backprop& g) { return each_that_arrives(g, [](const Tensors& z, auto&) { return z; }); },
     .roundings = sum_roundings,
     .collective = Collective::all_reduce,
     .inplace = {{0, 0}}});

const Op& all_reduce_gradient_op =
    *define_op({.name = "all_reduce_gradient",
                .doc = "x → y: x, which is equal on all ranks; each rank uses it differently",
                .infer =
                    [](std::span<const Operand> in, const Attrs& a) {
                      detail::require_operands(in, 1);
                      if (a.as<RankAttrs>().ranks < 1)
                        throw ShapeError("the number of ranks must be at least 1");
                      return std::vector<OutSpec>{{in[0].dtype, in[0].layout, 0}};
                    },
                .vjp = [](const Backprop& g) { return gradient_by(all_reduce_op, g); },
                .samples = []() -> std::vector<Sample> {
                  return {{"2d", {{{3, 4}}}, [](auto x) {
                             return recorded(all_reduce_gradient_op, {x[0]}, {.ranks = 1});
                           }}};
                },
                .view = true});

const Op& all_gather_op =
    *define_list({.name = "all_gather",
                  .doc = "x₁, … → y₁, …: yᵢ = the xᵢ of all ranks, concatenated along axis 0",
                  .infer = infer_of<Sizes::times_ranks, false, false>,
                  .vjp = [](const Backprop& g) { return gradient_by(reduce_scatter_op, g); },
                  .collective = Collective::all_gather});

const Op& reduce_scatter_op =
    *define_list({.name = "reduce_scatter",
                  .doc = "x₁, … → y₁, …: yᵢ = the rank's shard, along axis 0, of Σ of xᵢ over all ranks",
                  .infer = infer_of<Sizes::divided, true, true>,
                  .vjp =
                      [](const Backprop& g) {
                        return each_that_arrives(g, [](const Tensors& z, const RankAttrs& a) {
                          return recorded(all_gather_op, z, {.ranks = a.ranks});
                        });
                      },
                  .roundings = sum_roundings,
                  .collective = Collective::reduce_scatter,
                  .early = true});

const Op& all_to_all_op = *define_list(
    {.name = "all_to_all",
     .doc =
         "x₁, … → y₁, …: shard s of yᵢ, along axis 0, is the shard of rank s's xᵢ whose index is this rank",
     .infer = infer_of<Sizes::kept, true, false>,
     .vjp = [](const Backprop& g) { return gradient_by(all_to_all_op, g); },
     .collective = Collective::all_to_all});

const Op& ppermute_op =
    *define_list({.name = "ppermute",
                  .doc = "x₁, … → y₁, …: yᵢ = the xᵢ of the rank that is `shift` before this one, in a ring",
                  .infer = infer_of<Sizes::kept, false, false>,
                  .vjp =
                      [](const Backprop& g) {
                        return each_that_arrives(g, [](const Tensors& z, RankAttrs a) {
                          a.shift = -a.shift;
                          return recorded(ppermute_op, z, a);
                        });
                      },
                  .collective = Collective::ppermute},
                 {.ranks = 1, .shift = 1});

const Op& local_shard_op =
    *define_list({.name = "local_shard",
                  .doc = "x₁, … → y₁, …: yᵢ = the rank's shard of xᵢ along axis 0",
                  .infer = infer_of<Sizes::divided, true, false>,
                  .vjp = [](const Backprop& g) { return gradient_by(all_gather_op, g); },
                  .collective = Collective::local_shard});

TensorList all_reduce(const TensorList& xs, int ranks, const ReduceOptions& o, Where where) {
  return along(all_reduce_op, xs, {.ranks = ranks, .wide = o.wide}, 0, where);
}

TensorList all_reduce_gradient(const TensorList& xs, int ranks, Where where) {
  if (is_alone(xs, ranks, "all_reduce_gradient", where)) return xs;
  TensorList ys;
  for (const Tensor& x : xs) ys.push_back(recorded(all_reduce_gradient_op, {x}, {.ranks = ranks}, where)[0]);
  return ys;
}

TensorList all_gather(const TensorList& xs, int ranks, std::int64_t axis, Where where) {
  return along(all_gather_op, xs, {.ranks = ranks}, axis, where);
}

TensorList reduce_scatter(const TensorList& xs, int ranks, std::int64_t axis, const ReduceOptions& o,
                          Where where) {
  return along(reduce_scatter_op, xs, {.ranks = ranks, .wide = o.wide}, axis, where);
}

TensorList all_to_all(const TensorList& xs, int ranks, std::int64_t axis, Where where) {
  return along(all_to_all_op, xs, {.ranks = ranks}, axis, where);
}

TensorList ppermute(const TensorList& xs, int ranks, int shift, Where where) {
  if (is_alone(xs, ranks, "ppermute", where)) return xs;
  // With the remainder, equivalent shifts are equal, and a negation cannot overflow.
  return along(ppermute_op, xs, {.ranks = ranks, .shift = shift % ranks}, 0, where);
}

TensorList local_shard(const TensorList& xs, int ranks, std::int64_t axis, Where where) {
  return along(local_shard_op, xs, {.ranks = ranks}, axis, where);
}

}  // namespace tg
