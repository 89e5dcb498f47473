// How the compiler orders and joins the steps of a program for a GPU.
#pragma once

#include "core/compile/scheduler.h"

namespace tg::cuda {

class CudaScheduler final : public Scheduler {
 public:
  bool has_epilogues() const override { return true; }
  // Not if the kernel of `before` computes the chain, nor if two kernels are as fast: for one sum of few
  // elements, and for rows that have to be cut and whose length is not a multiple of 8.
  bool joins_reduction(const Graph& graph, const LoweredStep* before, const LoweredStep& chain,
                       std::int64_t rows, std::int64_t length) const override;
  // The next gradient of attention, beside which a GPU exchanges data at little cost: products need the memory's
  // rate and the multiprocessors more.
  std::optional<std::size_t> step_beside(std::span<const LoweredStep> steps, std::size_t first,
                                         std::size_t last) const override;
  // Puts ropes beside attention (place_ropes.h).
  void order(const Graph& graph, std::vector<LoweredStep>& steps) const override;
  // Small products last (products_last.h), unless there is a memory budget, and casts first (casts_first.h).
  void reorder(const Graph& graph, const std::vector<LoweredStep>& steps, const Joined& joined,
               const CompileOptions& options, const Propose& propose) const override;
};

}  // namespace tg::cuda
