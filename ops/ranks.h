// Ops in which the ranks of a group exchange data. Each of `ranks` processes runs the same program with data
// of its own (CompileOptions::ranks); x_r is the value of x on rank r. Values are of these kinds:
//   replicated  the same on every rank            sharded  a piece of one tensor on each rank
//   partial     the meaning is Σ_r x_r            varying  each rank's own
// and each op says between which of them it goes. By these kinds the gradients below are right for a loss
// that is replicated and counted once. All ranks must run the same programs in the same order; a group of one
// needs no communicator, and these functions then record nothing but casts.
//
// Lists of tensors are one step. `axis` is divided into as many pieces as there are ranks; ShapeError if its
// size is not a multiple. Results are row-major.
#pragma once

#include <vector>

#include <tilegrad/core/graph/tensor.h>

namespace tg {

using TensorList = std::vector<Tensor>;

struct ReduceOptions {
  bool wide = false;  // the result of half types is f32
};

// partial → replicated: y = Σ_s x_s, of floating types, in f32 for half types, by a fixed tree: the left half
// of the ranks is the largest power of two below their number. So the sum of 2^k ranks is that of the two
// sums of 2^(k−1) ranks, bit for bit. Gradient: z_x = z_y.
TensorList all_reduce(const TensorList& xs, int ranks, const ReduceOptions& options = {},
                      Where where = Where::current());
// replicated → varying: y = x. Gradient: z_x = all_reduce(z_y).
TensorList all_reduce_gradient(const TensorList& xs, int ranks, Where where = Where::current());
// sharded → varying: y = x_0 ‖ x_1 ‖ … along the axis. Gradient: z_x = reduce_scatter(z_y), the sum of
// the ranks' z_y. If all ranks do the same with y, the loss counts it once for each rank.
TensorList all_gather(const TensorList& xs, int ranks, std::int64_t axis = 0, Where where = Where::current());
// partial → sharded: piece r of all_reduce(x), bitwise, on rank r. Gradient: z_x = all_gather(z_y).
TensorList reduce_scatter(const TensorList& xs, int ranks, std::int64_t axis = 0,
                          const ReduceOptions& options = {}, Where where = Where::current());
// varying → varying: piece s of y_r is piece r of x_s. It is its own gradient.
TensorList all_to_all(const TensorList& xs, int ranks, std::int64_t axis = 0, Where where = Where::current());
// varying → varying: y_r = x_(r − shift mod ranks). Gradient: z_x = ppermute(z_y, −shift).
TensorList ppermute(const TensorList& xs, int ranks, int shift, Where where = Where::current());
// replicated → sharded: piece r of x on rank r. Gradient: z_x = all_gather(z_y), which is replicated.
TensorList local_shard(const TensorList& xs, int ranks, std::int64_t axis = 0,
                       Where where = Where::current());

}  // namespace tg
