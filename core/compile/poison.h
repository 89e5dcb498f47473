// Poison, for CompileOptions::verify: memory that holds no value is filled with bytes that are NaN in every
// floating type, so that a step that reads a dead or unwritten buffer gives wrong bits instead of plausible
// ones.
#pragma once

#include "core/compile/memory_plan.h"

namespace tg {

// The steps with others between them that fill every buffer of the arena right after the last step that uses
// it, and before all of them the whole arena and the results (behind `status_bytes`, which the executable
// uses).
std::vector<Step> poisoned(std::vector<Step> steps, std::byte* arena, std::byte* results,
                           std::size_t status_bytes, const Buffers& buffers, const MemoryPlan& plan);

}  // namespace tg
