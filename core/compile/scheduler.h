// StepScheduler: a backend's rules for the order of a program's steps and for steps that one kernel computes.
// This class has the rules of a device that computes one step after the other. Also functions that find
// the steps that must stay together.
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

  // Whether a kernel may compute an epilogue (Op::unrounded_epilogue) with the product before it, from
  // elements that are not rounded yet. A separate step would give a different result.
  virtual bool has_epilogues() const { return false; }

  // Whether one step computes a fused step and the reduction of its result, `rows` sums of `length` elements
  // each. `before` is the step before it; null for the first step.
  virtual bool joins_reduction(const Graph& graph, const LoweredStep* before, const LoweredStep& fused,
                               std::int64_t rows, std::int64_t length) const;

  // The step of [first, last) with which the collective op steps[last] best runs at the same time. If there
  // is none, the op runs as soon as its operands exist, before steps[first].
  virtual std::optional<std::size_t> overlapped_step(std::span<const LoweredStep> steps, std::size_t first,
                                                     std::size_t last) const;

  // Puts the steps in a faster order, before they have memory.
  virtual void order(const Graph& graph, std::vector<LoweredStep>& steps) const;

  // Proposes faster orders of steps that have memory. `propose` makes an order that of `steps` if the arena
  // then has at most `more` additional bytes.
  using Propose = std::function<void(std::vector<LoweredStep> reordered, std::size_t more)>;
  virtual void reorder(const Graph& graph, const std::vector<LoweredStep>& steps, const Joined& joined,
                       const CompileOptions& options, const Propose& propose) const;
};

// Neighbours: steps that a backend may compute in one kernel if they follow one another. What moves steps or
// puts others between them leaves these pairs as they are.

// The step before steps[at], past those that passes have taken out (without an op); null if there is none.
const LoweredStep* step_before(std::span<const LoweredStep> steps, std::size_t at);

// Whether `next` reads a result of `step`, or a view of one.
bool reads_result(const Graph& graph, const LoweredStep& step, const LoweredStep& next);

// Whether `next` reads a result of the step before it, and a kernel of some backend may compute both. Passes
// that move steps do not separate such a pair. On a device without such kernels this still helps: a program
// that keeps a memory budget then computes fewer steps again.
bool belong_together(const Graph& graph, const LoweredStep& step, const LoweredStep& next);
// Whether the two steps stay next to each other in every order: also if the backend may compute them together
// (LoweredStep::with_next).
bool stay_together(const Graph& graph, const LoweredStep& step, const LoweredStep& next);

// Whether a step is a chain of one op that may be an epilogue (Op::unrounded_epilogue).
bool may_be_epilogue(const LoweredStep& step);

// Whether `next` may be an epilogue, and `product` is a product: computed together, `next` reads numbers that
// are not rounded yet, and has other bits than by itself if they are of a half type.
bool is_epilogue(const LoweredStep& product, const LoweredStep& next);
// Whether it then has other bits: they are of a half type.
bool is_rounding_epilogue(const Graph& graph, const LoweredStep& product, const LoweredStep& next);

}  // namespace tg
