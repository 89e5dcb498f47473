// The passes of compile() from a graph to steps and their memory: what it does before it needs a backend.
#pragma once

#include "core/compile/placed.h"

namespace tg {

struct Passes {
  Outputs outputs;
  std::vector<LoweredStep> steps;
  Joined joined;
  std::vector<bool> directly;  // see written_directly
  bool on_gpu = false;
  Placed placed;

  Scheduled known(const std::vector<Assign>& assign) const {
    return {joined, outputs, assign, directly, on_gpu};
  }
};

// status_bytes: Backend::status_bytes. reuse: false gives every buffer separate memory. Throws Error for
// tensors, assignments and updates as compile() does. A memory budget only affects the order of a GPU's steps
// here.
Passes run_passes(Graph& graph, const std::vector<Tensor>& fetch, const CompileOptions& options, bool reuse,
                  bool on_gpu, std::size_t status_bytes);

}  // namespace tg
