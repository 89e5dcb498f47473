// How the compiler orders and joins the steps of a program for a GPU.
#pragma once

#include "core/compile/scheduler.h"

namespace tg::cuda {

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
  // Puts RoPE next to attention (place_ropes.h).
  void order(const Graph& graph, std::vector<LoweredStep>& steps) const override;
  // Puts small products last (products_last.h), unless there is a memory budget, and casts first
  // (casts_first.h).
  void reorder(const Graph& graph, const std::vector<LoweredStep>& steps, const Joined& joined,
               const CompileOptions& options, const Propose& propose) const override;
};

}  // namespace tg::cuda
