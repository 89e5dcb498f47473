// The plan of a fused elementwise step. It contains the iteration space with merged axes, and the code with
// block functions instead of op names. The plan is created once, at compile time, and kernels/fused.cpp runs
// it. It is plain data, because the kernels of every instruction set read it.
#pragma once

#include <memory>

#include "backends/cpu/kernel.h"

namespace tg::cpu {

struct PointwisePlan {
  static constexpr int block = 1024;  // elements; a few blocks stay in the L1 cache
  static constexpr int max_inputs = 12, max_outputs = 4, max_code = 28;
  static constexpr int tile = 32;  // tile·tile elements are a block
  static_assert(tile * tile == block);

  struct Access {                    // how the step reads an input or writes an output
    std::int64_t strides[max_rank];  // strides in elements, per axis of the iteration space
    bool direct;                     // in iteration order and the compute type; needs no block
    bool converts;                   // its type is not the compute type
    bool across;                     // contiguous along tile_axis instead of the last axis
    int size;                        // bytes of an element in memory
    bool streams;                    // an output so large that it bypasses the caches
    LoadFn load;
    StoreFn store;
  };
  struct Source {
    enum Kind : std::uint8_t { none, input, constant, slot } kind;
    int index;
  };
  struct Instruction {
    BlockFn run;
    Source source[3];
    int slot;  // block of the result; -1 - i: output i, without a block
  };

  int rank = 0;
  std::int64_t shape[max_rank];  // outermost first
  std::int64_t numel = 0;
  // If an input is transposed relative to the output, blocks are square tiles over this axis and the last
  // axis. Both tensors are then accessed by whole cache lines. Otherwise tile_axis is -1, and blocks are
  // ranges of the iteration.
  int tile_axis = -1;
  int inputs = 0, outputs = 0;
  int stored = 0;    // number of outputs that are written to memory
  int reduced = -1;  // the output that a reduction reads from its block
  Access input[max_inputs], output[max_outputs];
  int input_slot[max_inputs];    // block of each input; unused for direct inputs
  int output_slot[max_outputs];  // block of each output; unused for direct outputs
  int code_size = 0;
  Instruction code[max_code];
  int compute_size = 4;
  int tile_slot = 0;  // the block in which a transposed input is converted
  int slots = 0;
  static constexpr int max_constants = 3 * max_code;
  const std::byte* constant[max_constants];  // [block] filled with one value each, in the compute type
};

// Returns the block function of an op whose result has `dtype`. A cast rounds to its dtype, except that a
// cast from i64 is rounded when it is stored. For other ops, the name determines the function. Throws
// DeviceError if there is none.
BlockFn block_function(const KernelSet& set, const Op& op, DType dtype, DType compute);
// Throws DeviceError if the kernel set has no block function or conversion for a part of the step.
std::shared_ptr<const PointwisePlan> plan_pointwise(const Step& step, const KernelSet& set);
// Returns the plan of the elementwise ops that are fused into a reduction (core/compile/fused_reductions.h).
std::shared_ptr<const PointwisePlan> plan_fused_reduction(const Step& step, const KernelSet& set);

}  // namespace tg::cpu
