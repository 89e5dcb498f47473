// Buffers: the memory of each value of a program and the lifetime of that memory in steps. Offsets are not
// yet assigned. Also liveness: the number of bytes in use at each step.
#pragma once

#include "core/compile/assignments.h"
#include "core/compile/lower.h"

namespace tg {

struct Buffer {
  enum Kind {
    arena,  // an intermediate or large fetched result; live from `first` to `last`
    // a small fetched result, copied to the host with the others; live all the time, as are the kinds below
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

// Creates a buffer for each value that a step reads or writes. A joined value is stored in the buffer of the
// larger value, and a view in the buffer of its root. Values that are written directly (see assignments.h)
// are stored in the memory of their parameter.
Buffers buffers_of(const Graph& graph, std::span<const LoweredStep> steps, const Joined& joined,
                   const Outputs& outputs, const std::vector<Assign>& assign,
                   const std::vector<bool>& directly);

// Whether output v of the step may overwrite this input: the op allows it, and dtypes and layouts are equal.
bool can_overwrite(const Graph& graph, const LoweredStep& step, ValueId v, std::size_t input);

// In-place results: if no later step reads an input and the step can overwrite it, an output uses the buffer
// of that input. The output's own buffer then has 0 bytes.
void share_in_place(const Graph& graph, std::span<const LoweredStep> steps, const Joined& joined,
                    Buffers& buffers);

// The parameters that the program reads or writes, each once. Throws DeviceError for a parameter that is not
// stored on `device`.
std::vector<Parameter> parameters_of(const Buffers& buffers, std::span<const LoweredStep> steps,
                                     Device device);

// Lists the steps that use each value, and the bytes of the arena that are in use at each step.
struct Liveness {
  // All lists are indexed by root value.
  std::vector<int> maker;              // the step that computes it; −1 for leaves and joined concats
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
