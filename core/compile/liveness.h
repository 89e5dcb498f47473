// Liveness: which steps use a value, and the bytes of the arena that are in use at each step.
#pragma once

#include "core/compile/buffers.h"

namespace tg {

struct Liveness {
  // By value that is its own root.
  std::vector<int> maker;  // the step that computes it; -1 for leaves and for what is joined from parts
  std::vector<std::vector<int>> uses;  // the steps that read it or a view of it, in order
  std::vector<bool> kept;              // computed for the end of the run
  Buffers buffers;                     // after share_in_place

  std::vector<std::size_t> alive;  // bytes, by step
  int peak = 0;                    // the first step at which most are alive

  std::size_t bytes_of(ValueId root) const;  // of its buffer; 0 if that is not in the arena
};

Liveness liveness_of(const Graph& graph, std::span<const LoweredStep> steps, const Joined& joined,
                     const Outputs& outputs, const std::vector<Assign>& assign,
                     const std::vector<bool>& directly);

}  // namespace tg
