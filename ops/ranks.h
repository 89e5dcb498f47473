// Collective ops, which exchange data among the ranks of a group. Each of `ranks` processes runs the same
// program on its own data (CompileOptions::ranks). x_r is the value of x on rank r. A value has one of four
// kinds:
// - replicated: the same on every rank
// - sharded: each rank stores a shard of one tensor
// - partial: the tensor is Σ_r x_r
// - varying: each rank has a different value
//
// The comment of each op gives the kinds of operand and result. The gradients are correct for a replicated
// loss that counts once, not once per rank. All ranks must run the same programs in the same order. With one
// rank, no communicator is needed, and these functions record only casts.
//
// A call on a list of tensors is one step. If an op divides `axis`, the size of the axis must be a multiple
// of the number of ranks; otherwise ShapeError is thrown. Results are row-major.
#pragma once

#include <vector>

#include <tilegrad/core/graph/tensor.h>

namespace tg {

// The operands or results of a collective op, which may differ in shape and dtype.
using TensorList = std::vector<Tensor>;

// Options of all_reduce() and reduce_scatter().
struct ReduceOptions {
  bool wide = false;  // return f32 for bf16 and f16 operands
};

// partial → replicated: y = Σ_s x_s, for floating dtypes; 16-bit dtypes are summed in f32. The order of the
// sum is a fixed binary tree. The left half has the largest power of two below the number of ranks. A sum
// over 2^k ranks is therefore bitwise identical to the sum of two sums over 2^(k−1) ranks. Gradient: z_x =
// z_y.
TensorList all_reduce(const TensorList& xs, int ranks, const ReduceOptions& options = {},
                      Where where = Where::current());
// replicated → varying: y = x. Gradient: z_x = all_reduce(z_y).
TensorList all_reduce_gradient(const TensorList& xs, int ranks, Where where = Where::current());
// sharded → varying: y = x_0 ‖ x_1 ‖ … along the axis. Gradient: z_x = reduce_scatter(z_y), the sum over the
// ranks. If all ranks compute the same value from y, the loss counts it once per rank.
TensorList all_gather(const TensorList& xs, int ranks, std::int64_t axis = 0, Where where = Where::current());
// partial → sharded: rank r gets shard r of all_reduce(x), bitwise. Gradient: z_x = all_gather(z_y).
TensorList reduce_scatter(const TensorList& xs, int ranks, std::int64_t axis = 0,
                          const ReduceOptions& options = {}, Where where = Where::current());
// varying → varying: shard s of y_r is shard r of x_s. The gradient is the same op.
TensorList all_to_all(const TensorList& xs, int ranks, std::int64_t axis = 0, Where where = Where::current());
// varying → varying: y_r = x_(r − shift mod ranks), as jax.lax.ppermute. Gradient: z_x = ppermute(z_y,
// −shift).
TensorList ppermute(const TensorList& xs, int ranks, int shift, Where where = Where::current());
// replicated → sharded: rank r gets shard r of x. Gradient: z_x = all_gather(z_y), which is replicated.
TensorList local_shard(const TensorList& xs, int ranks, std::int64_t axis = 0,
                       Where where = Where::current());

}  // namespace tg
