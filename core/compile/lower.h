// Lowering: from nodes to the steps a program takes, still on the graph's values: prune, fold scalars, fuse
// chains of pointwise ops. A fused step's attributes are a small straight-line program over its inputs.
#pragma once

#include <tilegrad/core/graph/graph.h>

namespace tg {

// The attributes of fused_op: instructions in order, of which some are the step's results.
struct FusedAttrs {
  // What a step may have. Merging adds at most one instruction for each result (core/merge.h).
  static constexpr int max_inputs = 12, max_outputs = 4, max_chain = 24, max_code = max_chain + max_outputs;
  struct Operand {
    enum Kind : std::uint8_t { input, constant, result } kind;
    std::int32_t index;  // of the step's input, of `constants`, or of an earlier instruction
  };
  struct Instruction {
    const Op* op;
    DType dtype;  // of its value; a cast rounds to it
    std::uint8_t count = 0;
    Operand slots[3];  // a pointwise op has no more
    std::span<const Operand> operands() const { return {slots, count}; }
    std::span<Operand> operands() { return {slots, count}; }
  };
  DType compute;  // f64, f32 or i64: what inputs are converted to and results from
  std::vector<Instruction> code;
  std::vector<double> constants;
  std::vector<std::int32_t> results = {};  // instructions, in the order of the step's outputs; none: the last
  std::int32_t result(std::size_t out) const {
    return results.empty() ? static_cast<std::int32_t>(code.size()) - 1 : results[out];
  }
  // Puts the code of another behind this, with these operands in the place of its inputs.
  void append(const FusedAttrs& other, std::span<const Operand> inputs);
  void fields(auto&& field) const { field("code", text()); }
  std::string text() const;  // "mul(in0, 2) → add(%0, in1)", and "; results %0, %1" if there are several
};
extern const Op fused_op;

struct LoweredStep {
  const Op* op;
  Attrs attrs;
  std::vector<ValueId> in, out;
  NodeId node;  // the node it computes, the last one of a chain; gives the source line and the name
};

// Whether a chain may read a value of its own that is not stored first: one of a narrow integer type must be
// what storing makes of it. Booleans are: every op that makes one makes 0 or 1.
bool stays_in_chain(DType dtype, DType compute);

// By node: whether the wanted values need it.
std::vector<bool> needed_nodes(const Graph& graph, std::span<const ValueId> wanted);

// Steps in an order in which every value is computed before it is read. `wanted` values are computed and kept
// whole.
std::vector<LoweredStep> lower(const Graph& graph, std::span<const ValueId> wanted, bool fuse);

}  // namespace tg
