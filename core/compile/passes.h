// The passes of compile() from a graph to steps and their memory: what it does before it needs a backend.
#pragma once

#include "core/compile/placed.h"

namespace tg {

struct Passes {
  Outputs outputs;
  std::vector<LoweredStep> steps;
  Joined joined;
  std::vector<bool> directly;  // see written_directly
  const Scheduler* scheduler = nullptr;
  Placed placed;

  Scheduled known(const std::vector<Assign>& assign) const {
    return {joined, outputs, assign, directly, *scheduler};
  }
};

// status_bytes: Backend::status_bytes. reuse: false gives every buffer separate memory. Throws Error for
// tensors, assignments and updates as compile() does. Of a memory budget it only uses whether there is one.
Passes run_passes(Graph& graph, const std::vector<Tensor>& fetch, const CompileOptions& options, bool reuse,
                  const Scheduler& scheduler, std::size_t status_bytes);

}  // namespace tg
