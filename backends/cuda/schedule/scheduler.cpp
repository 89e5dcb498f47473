#include "backends/cuda/schedule/scheduler.h"

#include <algorithm>
#include <utility>

#include <tilegrad/ops/flash_attn.h>
#include "core/compile/scheduler.h"

namespace tg::cuda {

namespace {

// If a sum has at most this number of elements, one launch computes both the sum and the previous fused step
// (horizontal_fusion.cpp).
constexpr std::int64_t few = 4096;
// A row is not split if it has at most short_row elements, or if there are at least many_rows rows. Otherwise
// it is split into whole packs of at most longest_pack elements, so that all multiprocessors have work
// (kernels/reduce_plan.cu).
constexpr std::int64_t short_row = 4096, many_rows = 2048, longest_pack = 8;

// Whether `next` only adds a tensor to output 0 of the previous step, and the kernel of the previous step can
// compute the sum.
bool is_accepted_sum(const Graph& graph, const LoweredStep& step, const LoweredStep& next) {
  const Op* op = only_op_of(next);
  return step.op->accepts_sum && op && op->adds == 1 &&
         std::ranges::any_of(next.in, [&](ValueId v) { return graph.values()[v].root == step.out[0]; });
}

}  // namespace

bool CudaScheduler::joins_reduction(const Graph& graph, const LoweredStep* before, const LoweredStep& fused,
                                    std::int64_t rows, std::int64_t length) const {
  if (before && is_accepted_sum(graph, *before, fused)) return false;
  if (rows == 1 && length <= few) return false;
  return length <= short_row || rows >= many_rows || length % longest_pack == 0;
}

std::optional<std::size_t> CudaScheduler::overlapped_step(std::span<const LoweredStep> steps,
                                                          std::size_t first, std::size_t last) const {
  for (std::size_t s = first; s < last; ++s)
    if (attention_backward_of(*steps[s].op, steps[s].attrs)) return s;
  return std::nullopt;
}

void CudaScheduler::order(const Graph& graph, std::vector<LoweredStep>& steps) const {
  schedule_ropes(graph, steps);
}

void CudaScheduler::reorder(const Graph& graph, const std::vector<LoweredStep>& steps, const Joined& joined,
                            const CompileOptions& options, const Propose& propose) const {
  constexpr std::size_t little = std::size_t{8} << 20, most_cast = std::size_t{32} << 20;
  if (options.memory_budget == 0 && !options.batch_invariant) {
    std::vector<LoweredStep> reordered = steps;
    if (products_last(graph, reordered, joined)) propose(std::move(reordered), little);
  }
  std::vector<LoweredStep> reordered = steps;
  if (casts_first(graph, reordered, most_cast)) propose(std::move(reordered), 0);
}

}  // namespace tg::cuda
