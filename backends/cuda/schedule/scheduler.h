// How the compiler orders and fuses the steps of a program for a GPU.
#pragma once

#include <vector>

#include "core/compile/lower.h"
#include "core/compile/scheduler.h"

namespace tg::cuda {

// Moves RoPE steps next to attention steps. RoPE of queries and keys moves next to the attention that reads
// them. RoPE of their gradients moves next to the attention backward that computes them. A GPU's attention
// kernel may then compute them as well.
//
// The resulting order is rope(q), rope(k), flash_attn, and flash_attn_backward, rope(z_q), rope(z_k). If the
// first reader of a RoPE step's result is an attention step, the RoPE step is delayed until this attention
// step. A RoPE step is advanced if it reads the result of an attention backward. Attention steps that read a
// cache are not changed, because the steps before them append new rows to the cache.
void schedule_ropes(const Graph& graph, std::vector<LoweredStep>& steps);

// Moves small GEMMs next to each other, so that one kernel computes them
// (backends/cuda/gemm/grouped_gemm.cu). They are moved directly before the first step that reads one of their
// results. Weight gradients are such GEMMs, because they are not read before the optimizer. A model records
// each GEMM after the gradient from which it is computed.
//
// Moves a small 16-bit GEMM if its result is read only after the last small GEMM. The GEMM must not read a
// parameter, because parameters may change (LoweredStep::with_next). The operands of a moved GEMM stay
// allocated longer. Returns false, and changes nothing, if there are fewer than two such GEMMs.
bool products_last(const Graph& graph, std::vector<LoweredStep>& steps, const Joined& joined);

// Moves casts of parameters to the start of a program, so that one kernel computes them
// (backends/cuda/fusion/cast_list.cu). Models record each cast where a layer needs it.
//
// Moves the steps that only cast a whole parameter before all other steps, and keeps their order. It does so
// if their results have at most `most` bytes in total. Results of this size stay in a GPU's caches until they
// are read, even if other steps run in between. Returns whether the order has changed.
bool casts_first(const Graph& graph, std::vector<LoweredStep>& steps, std::size_t most);

class CudaScheduler final : public StepScheduler {
 public:
  bool has_epilogues() const override { return true; }
  // Returns false if the kernel of `before` computes the fused step. Also returns false if two kernels are as
  // fast. This is the case for a single sum of few elements, and for split rows with a length that is not a
  // multiple of 8.
  bool joins_reduction(const Graph& graph, const LoweredStep* before, const LoweredStep& fused,
                       std::int64_t rows, std::int64_t length) const override;
  // Returns the next attention backward step. An exchange of data at the same time costs little. It would
  // cost more during GEMMs, because they need more memory bandwidth and more multiprocessors.
  std::optional<std::size_t> overlapped_step(std::span<const LoweredStep> steps, std::size_t first,
                                             std::size_t last) const override;
  // Puts RoPE next to attention (schedule_ropes).
  void order(const Graph& graph, std::vector<LoweredStep>& steps) const override;
  // Proposes an order with casts first (casts_first). Without a memory budget and batch_invariant, also
  // proposes an order with small GEMMs last (products_last).
  void reorder(const Graph& graph, const std::vector<LoweredStep>& steps, const Joined& joined,
               const CompileOptions& options, const Propose& propose) const override;
};

}  // namespace tg::cuda
