// StepScheduler: a backend's rules for the order of steps, and for steps that one kernel computes together.
// The base class implements the rules of a device that runs one step at a time. This header also declares
// functions that find steps that must stay together.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <tilegrad/core/compile/compile.h>
#include "core/compile/lower.h"

namespace tg {

class StepScheduler {
 public:
  virtual ~StepScheduler() = default;

  // Whether a kernel may compute an epilogue (Op::unrounded_epilogue) together with the preceding GEMM. The
  // epilogue then reads elements that are not rounded yet, so a separate step would give a different result.
  virtual bool has_epilogues() const { return false; }

  // Whether one step should compute both a fused step and a reduction of its result. The reduction has `rows`
  // sums of `length` elements each. `before` is the preceding step; null for the first step.
  virtual bool joins_reduction(const Graph& graph, const LoweredStep* before, const LoweredStep& fused,
                               std::int64_t rows, std::int64_t length) const;

  // Returns the step in [first, last) that should run concurrently with the collective op steps[last]. If it
  // returns none, the collective op runs before steps[first], as soon as its operands exist.
  virtual std::optional<std::size_t> overlapped_step(std::span<const LoweredStep> steps, std::size_t first,
                                                     std::size_t last) const;

  // Reorders the steps for speed. Runs before offsets in memory are assigned.
  virtual void order(const Graph& graph, std::vector<LoweredStep>& steps) const;

  // Proposes faster orders. Runs after offsets in memory are assigned. `propose` applies an order, unless the
  // arena would need more than `more` additional bytes.
  using Propose = std::function<void(std::vector<LoweredStep> reordered, std::size_t more)>;
  virtual void reorder(const Graph& graph, const std::vector<LoweredStep>& steps, const Joined& joined,
                       const CompileOptions& options, const Propose& propose) const;
};

// Neighbors are pairs of adjacent steps that a backend may compute in one kernel. Code that moves or inserts
// steps keeps these pairs adjacent.
//
// Returns the last step before steps[at] that no pass has removed; removed steps have a null op. Returns null
// if there is none.
const LoweredStep* step_before(std::span<const LoweredStep> steps, std::size_t at);

// Whether `next` reads a result of `step`, or a view of one.
bool reads_result(const Graph& graph, const LoweredStep& step, const LoweredStep& next);

// Whether `next` reads a result of the step before it, and a kernel of some backend may compute both. Passes
// that move steps keep such a pair together. This is useful even on a device without such kernels, because a
// program with a memory budget then recomputes fewer steps.
bool belong_together(const Graph& graph, const LoweredStep& step, const LoweredStep& next);
// Whether two steps stay adjacent in every order. This includes pairs that the backend may compute together
// (LoweredStep::with_next).
bool stay_together(const Graph& graph, const LoweredStep& step, const LoweredStep& next);

// Whether a step is a single pointwise op that may be an epilogue (Op::unrounded_epilogue).
bool may_be_epilogue(const LoweredStep& step);

// Whether `next` may be an epilogue of the GEMM `product`. If one kernel computes both, `next` reads elements
// that are not rounded yet, so 16-bit results differ from the results of separate steps.
bool is_epilogue(const LoweredStep& product, const LoweredStep& next);
// Whether `next` is an epilogue with 16-bit operands. Its result then depends on whether one kernel computes
// both steps.
bool is_rounding_epilogue(const Graph& graph, const LoweredStep& product, const LoweredStep& next);

}  // namespace tg
