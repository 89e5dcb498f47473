// linear_cross_entropy computes the matmul of a language-model head and the cross-entropy in one op. A
// backend can then avoid separate passes over the logits. These are the largest tensor of a training step.
#pragma once

#include <tilegrad/ops/ops.h>

namespace tg {

// Options of linear_cross_entropy().
struct LinearCrossEntropyOptions {
  std::int64_t ignore_index = -100;       // as in CrossEntropyOptions
  Reduction reduction = Reduction::mean;  // as in CrossEntropyOptions
  double label_smoothing = 0;             // as in CrossEntropyOptions
  double z_loss = 0;  // λ: adds λ·ξ² to each row's loss, with ξ = log Σ exp of its logits (PaLM); at least 0
  // Number of rows per chunk; 0: one chunk of all rows. Logits of different chunks need not be in memory at
  // the same time (CompileOptions::memory_budget). The number is rounded down to a multiple of the unit, but
  // is at least one unit. Remaining rows, less than a unit, are added to the last chunk. There may be at most
  // 1024 chunks. Losses and gradients are bitwise identical for any chunk size.
  std::int64_t chunk_rows = 0;
  // Number of rows per unit, rounded up to a multiple of 64; 0: linear_cross_entropy_unit() of the classes.
  // With two units or more, GEMMs are computed per unit, and the gradient of w is the sum of the units'
  // products. The products are added in order, in f32 for 16-bit dtypes, and the sum is rounded once. Chunks
  // therefore do not change the result, but a different unit may change the last bits. Smaller units allow
  // smaller chunks. Each unit costs one pass over the gradient of w, except on Hopper in bf16 and f16.
  std::int64_t unit_rows = 0;
};

// Returns the default unit for a number of classes. It is 2^25 / classes, rounded up to a power of two, but
// at least 4,096 rows. Throws Error for less than 1 class.
std::int64_t linear_cross_entropy_unit(std::int64_t classes);

// Returns cross_entropy(linear(x, w), targets): x [..., c], w [c, V], targets [...] of type i64 or i32. x and
// w have one floating dtype; the loss is f32, or f64 for f64. A target out of range fails the run, as in
// cross_entropy(). On Hopper, logits in bf16 are not rounded, and only the GEMM reads or writes them
// (docs/architecture.md, Head and loss). Only the first derivative exists: a second one throws GradientError;
// use cross_entropy() for it. Throws Error for options out of range or for more than 1024 chunks.
Tensor linear_cross_entropy(TensorArg x, TensorArg w, TensorArg targets,
                            const LinearCrossEntropyOptions& options = {});

}  // namespace tg
