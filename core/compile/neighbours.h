// Neighbours: steps that a backend may compute together if they follow one another
// (backends/cuda/epilogue.h). What moves steps or puts others between them leaves these pairs as they are.
#pragma once

#include <span>

#include "core/compile/lower.h"

namespace tg {

// The step before steps[at], past those that passes have taken out (without an op); null if there is none.
const LoweredStep* step_before(std::span<const LoweredStep> steps, std::size_t at);

// Whether `next` reads a result of the step before it, and one kernel may compute both.
bool belong_together(const Graph& graph, const LoweredStep& step, const LoweredStep& next);
// Whether the two steps stay next to each other in every order: also if the backend may compute them together
// (LoweredStep::with_next).
bool stay_together(const Graph& graph, const LoweredStep& step, const LoweredStep& next);

// Whether a step is a gelu_tanh alone.
bool is_gelu_tanh(const LoweredStep& step);

// Whether `next` is a gelu_tanh alone, behind its matmul: computed together, it reads numbers that are not
// rounded yet, and has other bits than by itself if they are of a half type.
bool is_epilogue(const LoweredStep& product, const LoweredStep& next);
// Whether it then has other bits: they are of a half type.
bool is_rounding_epilogue(const Graph& graph, const LoweredStep& product, const LoweredStep& next);

// Whether `next` adds something to z_x of a norm's gradient, the step before it, and does nothing else.
bool is_sum_behind_norm(const Graph& graph, const LoweredStep& gradient, const LoweredStep& next);

}  // namespace tg
