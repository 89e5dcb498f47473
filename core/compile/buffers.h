// Buffers: the memory that each value of a program uses and its lifetime in steps, without offsets. Also
// liveness: the number of bytes in use at each step.
#pragma once

#include "core/compile/assignments.h"
#include "core/compile/lower.h"

namespace tg {

struct Buffer {
  enum Kind {
    arena,  // an intermediate or large fetched result, live from step `first` to step `last`
    // a small fetched result, copied to the host with the others; it and the following kinds are always live
    result,
    input,  // an input, or the state of random numbers
    constant,
    parameter  // the memory of `owner`; `bytes` is 0 if the program only writes it
  } kind = arena;
  std::size_t bytes = 0;
  int first = 0, last = -1;  // steps; last is the number of steps if the buffer is fetched
  Parameter owner = {};
};

struct Buffers {
  std::vector<Buffer> list;
  std::vector<int> of;  // per root value: index in `list`; −1: none
};

// Creates a buffer for each value that a step reads or writes. A joined value is part of the buffer of the
// larger value, and a view is part of its root's buffer. Values that are written directly (see assignments.h)
// are stored in the parameter's memory.
Buffers buffers_of(const Graph& graph, std::span<const LoweredStep> steps, const Joined& joined,
                   const Outputs& outputs, const std::vector<Assign>& assign,
                   const std::vector<bool>& directly);

// Whether output v of the step may overwrite this input: the op allows it, and dtypes and layouts are equal.
bool can_overwrite(const Graph& graph, const LoweredStep& step, ValueId v, std::size_t input);

// In-place results: an output uses the buffer of an input that no later step reads, if the step can overwrite
// it. The output's own buffer then has 0 bytes.
void share_in_place(const Graph& graph, std::span<const LoweredStep> steps, const Joined& joined,
                    Buffers& buffers);

// The parameters that the program reads or writes, each once. Throws DeviceError for a parameter that is not
// stored on `device`.
std::vector<Parameter> parameters_of(const Buffers& buffers, std::span<const LoweredStep> steps,
                                     Device device);

// Lists the steps that use each value, and the bytes of the arena that are in use at each step.
struct Liveness {
  // All lists are indexed by root value.
  std::vector<int> maker;  // the step that computes it; −1 for leaves and for values joined from parts
  std::vector<std::vector<int>> uses;  // the steps that read it or a view of it, in order
  std::vector<bool> kept;              // whether it is needed at the end of the run
  Buffers buffers;                     // after share_in_place

  std::vector<std::size_t> alive;  // bytes in use, per step
  int peak = 0;                    // the first step with the maximum

  std::size_t bytes_of(ValueId root) const;  // size of its buffer; 0 if that is not in the arena
};

Liveness liveness_of(const Graph& graph, std::span<const LoweredStep> steps, const Joined& joined,
                     const Outputs& outputs, const std::vector<Assign>& assign,
                     const std::vector<bool>& directly);

}  // namespace tg
