// Lowering: from nodes to the steps a program takes, still on the graph's values: prune, fold scalars, fuse
// chains of pointwise ops. A fused step's attributes are a small straight-line program over its inputs.
#pragma once

#include "core/graph.h"

namespace tg {

// The attributes of fused_op: instructions in order, the last one (or the marked ones) being the result.
struct FusedAttrs {
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
  void fields(auto&& field) const { field("code", text()); }
  std::string text() const;  // "mul(in0, 2) → add(%0, in1)"
};
extern const Op fused_op;

struct LoweredStep {
  const Op* op;
  Attrs attrs;
  std::vector<ValueId> in, out;
  NodeId node;  // the node it computes, the last one of a chain; gives the source line and the name
};

// By node: whether the wanted values need it.
std::vector<bool> needed_nodes(const Graph& graph, std::span<const ValueId> wanted);

// Steps in an order in which every value is computed before it is read. `wanted` values are computed and kept
// whole.
std::vector<LoweredStep> lower(const Graph& graph, std::span<const ValueId> wanted, bool fuse);

}  // namespace tg
