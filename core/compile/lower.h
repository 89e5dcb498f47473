// Lowering converts nodes to the steps of a program. The steps still refer to values of the graph. Lowering
// removes unneeded nodes, folds scalars and fuses pointwise ops. The attributes of a fused step are a small
// straight-line program over its inputs.
#pragma once

#include <unordered_map>

#include <tilegrad/core/graph/graph.h>

namespace tg {

// Attributes of fused_op: a list of instructions. The values of some instructions are the step's results.
struct FusedAttrs {
  // Limits of a step. Merging adds at most one instruction per result (merge.cpp).
  static constexpr int max_inputs = 12, max_outputs = 4, max_fused = 24, max_code = max_fused + max_outputs;
  struct Source {  // operand of an instruction
    enum Kind : std::uint8_t { input, constant, result } kind;
    std::int32_t index;  // index of a step input, of `constants`, or of an earlier instruction
  };
  struct Instruction {
    const Op* op;
    DType dtype;  // dtype of its value; a cast rounds to it
    std::uint8_t count = 0;
    Source slots[3];  // a pointwise op has at most three operands
    std::span<const Source> operands() const { return {slots, count}; }
    std::span<Source> operands() { return {slots, count}; }
  };
  DType compute;  // f64, f32 or i64: inputs are converted to it, results are converted from it
  std::vector<Instruction> code;
  std::vector<double> constants;
  // instruction of each output; empty: one output, from the last instruction
  std::vector<std::int32_t> results = {};
  std::int32_t result(std::size_t out) const {
    return results.empty() ? static_cast<std::int32_t>(code.size()) - 1 : results[out];
  }
  // Appends the code of another step. `inputs` replace the inputs of that step.
  void append(const FusedAttrs& other, std::span<const Source> inputs);
  void fields(auto&& field) const { field("code", text()); }
  std::string text() const;  // "mul(in0, 2) → add(%0, in1)", and "; results %0, %1" if there are several
};
extern const Op& fused_op;

// Returns the op of a step (LoweredStep or Step) that computes a single pointwise op of its operands, without
// constants. Returns null for other steps.
template <class S>
const Op* only_op_of(const S& step) {
  if (step.op != &fused_op || step.out.size() != 1) return nullptr;
  const auto& code = step.attrs.template as<FusedAttrs>().code;
  return code.size() == 1 && code[0].operands().size() == step.in.size() ? code[0].op : nullptr;
}

struct LoweredStep {
  const Op* op;
  Attrs attrs;
  std::vector<ValueId> in, out;
  NodeId node;  // the last node that the step computes; gives the source line and the name
  std::optional<Parameter> target =
      {};  // for a copy at the end of a run: the parameter that it writes; `out` is then empty
  bool with_next = false;  // a backend may compute it together with the next step, in any order
};

// Whether a fused step may use a value without storing it first. It may not if storing would change the
// value. Storing can change integers narrower than `compute`, and floats that are computed in i64. It does
// not change booleans, because every op that returns booleans returns 0 or 1.
bool stays_fused(DType dtype, DType compute);

// Per node: whether an output depends on it.
std::vector<bool> needed_nodes(const Graph& graph, std::span<const ValueId> outputs);

// Per root value: the step that computes the value (−1 for a leaf), and the number of steps and outputs that
// read the value or a view of it.
struct Uses {
  Uses(const Graph& graph, std::span<const LoweredStep> steps, std::span<const ValueId> outputs);
  std::vector<std::int64_t> maker;
  std::vector<int> readers;
};

// Returns the steps. Their order computes every value before it is read. A single step computes all elements
// of an output and stores them in memory.
std::vector<LoweredStep> lower(const Graph& graph, std::span<const ValueId> outputs, bool fuse);

// Concat without copies. The condition is that every input of the concat is a complete result, and nothing
// else reads it. The steps that compute the inputs then write them directly into the output, and the concat
// needs no step. An input may be a permuted view of a result. contiguous() is a concat of one input.
//
// The location of a joined value. It is in the memory of the value `whole` and has this layout.
struct Inside {
  ValueId whole;
  Layout layout;
};

using Joined = std::unordered_map<ValueId, Inside>;

// Removes such concats from the steps and returns the locations of their inputs. An input is joined only if
// the op that computes it supports results with any strides (Op::strided_results). `outputs` keep separate
// memory. Defined in join.cpp.
Joined join_in_place(const Graph& graph, std::vector<LoweredStep>& steps, std::span<const ValueId> outputs);

}  // namespace tg
