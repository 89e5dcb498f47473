// Step: a program as kernels see it. Apart from backend.h, so that kernels do not depend on how programs run.
#pragma once

#include <source_location>
#include <string>
#include <vector>

#include <tilegrad/core/graph/op.h>

namespace tg {

// An operand of a step. `data` points at the element whose indices are all zero: layout.offset is already
// added.
struct Arg {
  DType dtype;
  Layout layout;
  std::byte* data = nullptr;
};

// One kernel call of a program: a node, or a chain of pointwise nodes.
struct Step {
  const Op* op;
  Attrs attrs;
  std::vector<Arg> in, out;
  std::string name;  // the last node's path and op: "h0.mlp/gelu"
  Where where;       // of the last node
  // By output: how many operands of the program's steps read it, or a part of it; one more if it outlives the
  // run. A kernel that also computes the only step that reads it need not write it.
  std::vector<int> reads = {};
};

}  // namespace tg
