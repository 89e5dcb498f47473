// Placed: a program's buffers with their offsets. A GPU runs some orders of the steps faster. They are chosen
// if they need little more memory.
#pragma once

#include "core/compile/memory_plan.h"
#include "core/compile/scheduled.h"

namespace tg {

struct Placed {
  Buffers buffers;
  MemoryPlan plan;
};

// Steps → buffers → offsets. status_bytes: Backend::status_bytes. reuse: false gives every buffer separate
// memory.
Placed placed(const Graph& graph, std::span<const LoweredStep> steps, const Scheduled& known,
              std::size_t status_bytes, bool reuse);

// Puts casts of few parameters first, if the program does not need more memory then, as one that keeps them
// all for its backward pass does not.
void put_casts_first(const Graph& graph, std::vector<LoweredStep>& steps, const Scheduled& known,
                     std::size_t status_bytes, Placed& p);

// Puts small products where they are read, if that takes little memory.
void put_products_last(const Graph& graph, std::vector<LoweredStep>& steps, const Scheduled& known,
                       std::size_t status_bytes, Placed& p);

}  // namespace tg
