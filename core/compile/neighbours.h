// Neighbours: steps that a backend may compute in one kernel if they follow one another. What moves steps or
// puts others between them leaves these pairs as they are.
#pragma once

#include <span>

#include "core/compile/scheduler.h"

namespace tg {

// The step before steps[at], past those that passes have taken out (without an op); null if there is none.
const LoweredStep* step_before(std::span<const LoweredStep> steps, std::size_t at);

// The op of a chain of one op; null for other steps.
const Op* only_op_of(const LoweredStep& step);

// Whether `next` reads a result of `step`, or a view of one.
bool reads_result(const Graph& graph, const LoweredStep& step, const LoweredStep& next);

// Whether `next` reads a result of the step before it, and one kernel may compute both.
bool belong_together(const Graph& graph, const Scheduler& scheduler, const LoweredStep& step,
                     const LoweredStep& next);
// Whether the two steps stay next to each other in every order: also if the backend may compute them together
// (LoweredStep::with_next).
bool stay_together(const Graph& graph, const Scheduler& scheduler, const LoweredStep& step,
                   const LoweredStep& next);

// Whether a step is a chain of one op that may be an epilogue (Op::epilogue).
bool may_be_epilogue(const LoweredStep& step);

// Whether `next` may be an epilogue, and `product` is a product: computed together, `next` reads numbers that
// are not rounded yet, and has other bits than by itself if they are of a half type.
bool is_epilogue(const LoweredStep& product, const LoweredStep& next);
// Whether it then has other bits: they are of a half type.
bool is_rounding_epilogue(const Graph& graph, const LoweredStep& product, const LoweredStep& next);

}  // namespace tg
