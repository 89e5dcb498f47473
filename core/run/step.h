// Step: one step of a program, in the form that kernels receive. It is separate from backend.h, so kernels do
// not depend on the code that runs programs.
#pragma once

#include <source_location>
#include <string>
#include <vector>

#include <tilegrad/core/graph/op.h>

namespace tg {

// An operand of a step.
struct Arg {
  DType dtype;    // element type
  Layout layout;  // shape, strides and offset
  // Address of the element whose indices are all zero: layout.offset is already added.
  std::byte* data = nullptr;
};

// One kernel call of a program: a node, or several fused pointwise nodes.
struct Step {
  const Op* op;              // the op whose kernel runs
  Attrs attrs;               // the op's attributes
  std::vector<Arg> in, out;  // the operands
  std::string name;          // path and op of the last node: "h0.mlp/gelu"
  Where where;               // source line of the last node
  // Per output: the number of step operands that read the output or a part of it, plus one if the output
  // outlives the run. If a kernel computes two steps, and only the second one reads an output of the first,
  // the kernel need not write that output.
  std::vector<int> reads = {};
};

}  // namespace tg
