// linear_cross_entropy: the loss of a vocabulary's head, product and cross-entropy in one op, so that a
// backend need not pass over the logits, the largest tensor of a training step.
#pragma once

#include <tilegrad/ops/ops.h>

namespace tg {

struct LinearCrossEntropyOptions {
  std::int64_t ignore_index = -100;  // this and the next two: see CrossEntropyOptions
  Reduction reduction = Reduction::mean;
  double label_smoothing = 0;
  double z_loss = 0;  // times ξ² is added to each row's loss, ξ = log Σ exp of its logits (PaLM)
  // Rows of a chunk, whose logits need not exist at the same time as those of others
  // (CompileOptions::memory_budget); there are at most 1024 chunks; 0: all rows. Chunks are of whole units:
  // it is rounded down to a multiple of unit_rows, one at least, and the last chunk has what is left, less
  // than a unit more than the others at most. Losses and gradients have the same bits in any chunks and
  // without.
  std::int64_t chunk_rows = 0;
  // What gives them these bits: where there are two units or more, products of rows are made of units, and
  // the gradient of w is the sum of the units' products, one added after the other, in f32 for half types,
  // and rounded once. (On Hopper in bf16 and f16 one kernel has the same additions however rows are cut.)
  // Smaller units make smaller chunks possible; each costs a pass over the gradient of w elsewhere. It is
  // rounded up to a multiple of 64; 0: linear_cross_entropy_unit() of the classes. Other units, other last
  // bits.
  std::int64_t unit_rows = 0;
};

// 4,096, or as many rows as have 2^25 logits, if that is more: the next power of two. Throws Error for less
// than 1 class.
std::int64_t linear_cross_entropy_unit(std::int64_t classes);

// cross_entropy(linear(x, w), targets): x [..., c], w [c, V], targets [...] of type i64 or i32; x and w of
// one floating dtype, the loss in f32 for half types. The same targets fail. Where x and w are bf16 on
// Hopper, logits are not rounded, and never read or written apart from the product (see Head and loss in
// docs/architecture.md). It has a first derivative only: GradientError for more, which cross_entropy has.
Tensor linear_cross_entropy(TensorArg x, TensorArg w, TensorArg targets,
                            const LinearCrossEntropyOptions& options = {});

}  // namespace tg
