// Buffers: which memory every value of a program uses, and through which steps; not yet where it lies. Their
// liveness: how much of it is in use at each step.
#pragma once

#include "core/compile/assignments.h"
#include "core/compile/lower.h"

namespace tg {

struct Buffer {
  enum Kind {
    arena,   // an intermediate or large fetched result, alive from step `first` to step `last`
    result,  // a small fetched result: these are copied to the host together; alive always, as all that
             // follow
    input,   // including the state of random numbers
    constant,
    parameter  // the memory of `owner`; `bytes` is 0 if the program only writes it
  } kind = arena;
  std::size_t bytes = 0;
  int first = 0, last = -1;  // steps; last is the number of steps for what is fetched
  Parameter owner = {};
};

struct Buffers {
  std::vector<Buffer> list;
  std::vector<int> of;  // of each value that is its own root: index in `list`, -1 for none
};

// A buffer for every value that a step reads or writes. Joined values lie in the buffer of the whole, views
// in that of their root, and values written directly (see assignments.h) in the parameter's memory.
Buffers buffers_of(const Graph& graph, std::span<const LoweredStep> steps, const Joined& joined,
                   const Outputs& outputs, const std::vector<Assign>& assign,
                   const std::vector<bool>& directly);

// Whether output v of the step may be written over its input: the op allows it, and both have the same dtype
// and layout.
bool can_overwrite(const Graph& graph, const LoweredStep& step, ValueId v, std::size_t input);

// In place: an output takes over the buffer of an input that no later step reads, where the step can
// overwrite it. The output's own buffer is left with 0 bytes.
void share_in_place(const Graph& graph, std::span<const LoweredStep> steps, const Joined& joined,
                    Buffers& buffers);

// The parameters that the program reads or writes, each once. Throws DeviceError for one that lives elsewhere
// than on `device`.
std::vector<Parameter> parameters_of(const Buffers& buffers, std::span<const LoweredStep> steps,
                                     Device device);

// Which steps use a value, and the bytes of the arena that are in use at each step.
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
