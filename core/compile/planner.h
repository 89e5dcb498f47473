// Memory planner: places buffers with known lifetimes in one arena so that buffers that are alive at the same
// step never overlap.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace tg {

// A buffer is written at step `first` and not touched after step `last` (inclusive).
struct Lifetime {
  std::size_t bytes = 0;
  int first = 0, last = 0;
};

struct Placement {
  std::vector<std::size_t> offset;  // of each buffer in the arena, a multiple of 64
  std::size_t peak = 0;             // bytes of arena needed
  std::size_t alive = 0;            // most bytes alive at one step: no plan can need less
};

// Lifetimes must be ordered by `first`. reuse: false gives every buffer memory of its own, as a reference for
// checking. O(n log n).
Placement plan_memory(std::span<const Lifetime> buffers, bool reuse = true);

// Whether no two buffers that are alive at the same step overlap; does not depend on how the plan was made.
// O(n log n).
bool plan_is_sound(std::span<const Lifetime> buffers, const Placement& placement);

}  // namespace tg
