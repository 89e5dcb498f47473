// How the compiler orders and joins the steps of a program for a GPU.
#pragma once

#include <vector>

#include "core/compile/lower.h"
#include "core/compile/scheduler.h"

namespace tg::cuda {

// Ropes of queries and keys move to the attention that reads them, and those of their gradients to the
// attention that makes them. A GPU's kernel may then compute them as well.
//
// rope(q), rope(k), flash_attn and flash_attn_backward, rope(z_q), rope(z_k) follow one another, wherever
// these were recorded: a rope comes as late as its attention if that is the first to read it, and as early if
// it reads the attention's result. Attention that reads a cache stays as it is: what comes before it is the
// cache's new rows.
void place_ropes(const Graph& graph, std::vector<LoweredStep>& steps);

// Small products next to each other, right before the first of them is read: one kernel computes them
// (backends/cuda/gemm/small_products.cu). So are the gradients of weights, which nothing reads before the
// optimizer. Models record each behind the gradient that it is made of.
//
// Moves the small products in half types that are read behind the last of them, and read no parameter, which
// may change, to that place (LoweredStep::with_next). What they read is kept until then. Returns whether
// there are several.
bool products_last(const Graph& graph, std::vector<LoweredStep>& steps, const Joined& joined);

// Casts of parameters at the start of a program: next to each other one kernel computes them
// (backends/cuda/fusion/cast_list.cu). Models record each where a layer needs it.
//
// Moves the steps that cast a whole parameter and do nothing else before all others, in their order, if their
// results have no more than `most` bytes in all: so many stay in a GPU's caches until they are read, as each
// does that is cast just before. Returns whether that changed the order.
bool casts_first(const Graph& graph, std::vector<LoweredStep>& steps, std::size_t most);

class CudaScheduler final : public StepScheduler {
 public:
  bool has_epilogues() const override { return true; }
  // Not if the kernel of `before` computes the fused step. Not if two kernels are as fast: for one sum of few
  // elements, and for rows that are cut into pieces and whose length is not a multiple of 8.
  bool joins_reduction(const Graph& graph, const LoweredStep* before, const LoweredStep& fused,
                       std::int64_t rows, std::int64_t length) const override;
  // The next backward step of attention. A GPU exchanges data at little cost during it. Products need more of
  // the memory's bandwidth and of the multiprocessors.
  std::optional<std::size_t> overlapped_step(std::span<const LoweredStep> steps, std::size_t first,
                                             std::size_t last) const override;
  // Puts RoPE next to attention (place_ropes).
  void order(const Graph& graph, std::vector<LoweredStep>& steps) const override;
  // Puts small products last (products_last), unless there is a memory budget, and casts first
  // (casts_first).
  void reorder(const Graph& graph, const std::vector<LoweredStep>& steps, const Joined& joined,
               const CompileOptions& options, const Propose& propose) const override;
};

}  // namespace tg::cuda
