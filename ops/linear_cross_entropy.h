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
  // (CompileOptions::memory_budget); the last may have fewer; there are at most 1024; 0: all rows. The
  // gradient of w is then the sum of the chunks' products, in order, in f32 for half types, and rounded once
  // as without chunks. The same bits as without chunks: losses and the gradient of x on the CPU, in chunks of
  // more than 32 rows, and losses for bf16 on Hopper. Else on a GPU cuBLASLt may take another algorithm for
  // fewer rows. The gradient of w has other last bits on all devices: its additions are in another order.
  std::int64_t chunk_rows = 0;
};

// cross_entropy(linear(x, w), targets): x [..., c], w [c, V], targets [...] of type i64 or i32; x and w of
// one floating dtype, the loss in f32 for half types. The same targets fail. Where x and w are bf16 on
// Hopper, logits are not rounded, and never read or written apart from the product (see Head and loss in
// docs/architecture.md). It has a first derivative only: GradientError for more, which cross_entropy has.
Tensor linear_cross_entropy(TensorArg x, TensorArg w, TensorArg targets,
                            const LinearCrossEntropyOptions& options = {});

}  // namespace tg
