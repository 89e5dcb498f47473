// Lowering: from nodes to the steps of a program, still on the graph's values: prunes, folds scalars, fuses
// chains of pointwise ops. A fused step's attributes are a small straight-line program over its inputs.
#pragma once

#include <unordered_map>

#include <tilegrad/core/graph/graph.h>

namespace tg {

// The attributes of fused_op: instructions in order; the values of some are the step's results.
struct FusedAttrs {
  // Limits of a step. Merging adds at most one instruction for each result (merge.cpp).
  static constexpr int max_inputs = 12, max_outputs = 4, max_chain = 24, max_code = max_chain + max_outputs;
  struct Source {  // of an instruction's operand
    enum Kind : std::uint8_t { input, constant, result } kind;
    std::int32_t index;  // of the step's input, of `constants`, or of an earlier instruction
  };
  struct Instruction {
    const Op* op;
    DType dtype;  // of its value; a cast rounds to it
    std::uint8_t count = 0;
    Source slots[3];  // a pointwise op has at most three operands
    std::span<const Source> operands() const { return {slots, count}; }
    std::span<Source> operands() { return {slots, count}; }
  };
  DType compute;  // f64, f32 or i64: inputs are converted to it, results from it
  std::vector<Instruction> code;
  std::vector<double> constants;
  std::vector<std::int32_t> results = {};  // the instruction of each output; empty: one output, of the last
  std::int32_t result(std::size_t out) const {
    return results.empty() ? static_cast<std::int32_t>(code.size()) - 1 : results[out];
  }
  // Appends the code of another, with `inputs` in the place of its inputs.
  void append(const FusedAttrs& other, std::span<const Source> inputs);
  void fields(auto&& field) const { field("code", text()); }
  std::string text() const;  // "mul(in0, 2) → add(%0, in1)", and "; results %0, %1" if there are several
};
extern const Op& fused_op;

// The op of a step (LoweredStep or Step) that computes one pointwise op of its operands and has no constants;
// null for others.
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
  NodeId node;  // the node it computes, the last one of a chain; gives the source line and the name
  std::optional<Parameter> target =
      {};                  // of a copy at the end of a run: it writes this parameter, and `out` is empty
  bool with_next = false;  // a backend may compute it together with the step after it, in any order
};

// Whether a chain may use a value that it computed without storing it. Not if storing would change the value,
// as it may for integers narrower than `compute` and for floats made from i64. Booleans do not change: every
// op that makes one makes 0 or 1.
bool stays_in_chain(DType dtype, DType compute);

// By node: whether an output depends on it.
std::vector<bool> needed_nodes(const Graph& graph, std::span<const ValueId> outputs);

// By value that is its own root: the step that makes it, -1 for a leaf, and how often it or a view of it is
// read, by steps and as an output.
struct Uses {
  Uses(const Graph& graph, std::span<const LoweredStep> steps, std::span<const ValueId> outputs);
  std::vector<std::int64_t> maker;
  std::vector<int> readers;
};

// Steps in an order in which every value is computed before it is read. `outputs` are stored in memory,
// each by a step that computes all of it.
std::vector<LoweredStep> lower(const Graph& graph, std::span<const ValueId> outputs, bool fuse);

// Concat without copies: if each input of a concat is a whole result that nothing else reads, its producer
// writes it straight into the concat's output, and the concat needs no step. The input may be a permuted view
// of the result. contiguous() is a concat of one.

// Where a joined value lies: in the memory of another, with this layout.
struct Inside {
  ValueId whole;
  Layout layout;
};

using Joined = std::unordered_map<ValueId, Inside>;

// Removes such concats from the steps and returns where their inputs go. Producers must be able to write
// results of any strides (Op::strided_results); `outputs` keep memory of their own. In join.cpp.
Joined join_in_place(const Graph& graph, std::vector<LoweredStep>& steps, std::span<const ValueId> outputs);

}  // namespace tg
