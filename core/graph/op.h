// What an operation is: one constant object per op, defined in one file of ops/, that owns its shape rule,
// its gradient, its decomposition and its sample inputs. Kernels belong to the backends and are found by the
// op's name.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/base/attrs.h>
#include <tilegrad/core/base/host_view.h>
#include <tilegrad/core/base/layout.h>
#include <tilegrad/core/graph/tensor.h>

namespace tg {

// A value as shape rules see it.
struct Operand {
  DType dtype;
  Layout layout;
  const Shape& shape() const { return layout.shape; }
};

// One output of a node. A view says which input's memory it looks into; everything else gets memory of its
// own, laid out as `layout` says.
struct OutSpec {
  DType dtype;
  Layout layout;
  int view_of = -1;
};

// What a vector-Jacobian product gets: the node's inputs and outputs, and z_out = ∂L/∂out for each output,
// undefined where no gradient arrives. z has the output's shape and dtype.
struct Backprop {
  std::span<const Tensor> in, out, z;
  const Attrs& attrs;
  const std::vector<bool>& wanted;  // which inputs need a gradient; the others may be left undefined
};

struct Cost {
  double flops = 0, bytes = 0;
};

// How gradcheck and the tests fill an input of a sample.
struct Fill {
  enum Kind {
    normal,    // standard normal
    uniform,   // [low, high)
    distinct,  // a shuffled ramp in [low, high]: no two elements closer than its step (for max, sort, top_k)
    index,     // integers in [low, high)
    bits,      // booleans
    off_zero   // ±[low, high): away from a kink at 0
  } kind = normal;
  double low = -1, high = 1;
};

struct SampleInput {
  Shape shape;
  Fill fill = {};
  std::optional<DType> dtype = {};  // of an index, mask or key; floating inputs take the dtype under test
};

// One way to call the op: gradient-checked, compared across dtypes, views and backends, benchmarked.
struct Sample {
  std::string name;
  std::vector<SampleInput> inputs;
  std::function<std::vector<Tensor>(std::span<const Tensor>)> call = {};
};

struct Op {
  std::string name;

  // What it computes, in one line: "inputs → outputs: formula", with the operands' names, ? behind those that
  // may be left out. docs/ops.md is made of it (gradcheck --reference).
  std::string doc = {};

  // Shape rule: dtype and layout of each output; throws ShapeError or DTypeError without naming the op or the
  // line, which the graph adds.
  std::function<std::vector<OutSpec>(std::span<const Operand>, const Attrs&)> infer = {};

  // Gradient: z_in for each input as graph nodes, undefined where there is none. Without a vjp the
  // decomposition is differentiated, unless the op says why it has no gradient: then one that would pass
  // through it is refused with that reason.
  std::function<std::vector<Tensor>(const Backprop&)> vjp = {};
  std::string not_differentiable = {};

  // The same outputs from plainer ops: fused ops owe it (oracle, second derivative, fallback).
  std::function<std::vector<Tensor>(std::span<const Tensor>, const Attrs&)> decompose = {};

  std::function<std::vector<Sample>()> samples = {};

  // A kernel in the op itself, as a function on host memory: what a backend runs where it has no kernel of
  // its own for the op. Operands must be row-major. User-defined ops have one (autograd/custom_op.h).
  HostKernel host = {};

  // Work of one evaluation. Without it: no FLOPs to speak of, each input and output moved once.
  std::function<Cost(std::span<const Operand> in, std::span<const Operand> out, const Attrs&)> cost = {};

  // Element i of the output depends on element i of the inputs, all of one shape: such ops are fused into
  // chains.
  bool pointwise = false;
  // Kernels write results of any strides, so that the compiler may place a result inside another's memory.
  bool strided_results = false;
  // The axis on which the op lays its inputs side by side, for an op that does nothing else.
  int (*join_axis)(const Attrs&) = nullptr;
  // A view: no kernel and no memory, outputs look into input 0.
  bool view = false;
  // A leaf: an input, a parameter or a constant, given from outside.
  bool leaf = false;
  // Too much work to gradient-check twice over: no second derivative, or none offered.
  bool first_order_only = false;
  // {output, input} pairs that may share memory when the input is not needed afterwards. Of an op on a list
  // of tensors, that has `outs` outputs and `ins` inputs for each of them, the pairs are those of the first.
  std::vector<std::pair<int, int>> inplace = {};
  struct {
    int outs = 0, ins = 0;
  } each = {};
  // The file of the definition tells the op's family.
  std::source_location where = std::source_location::current();

  bool may_share(int out, int in) const {
    const int item = each.outs > 0 ? out / each.outs : 0;
    const std::pair pair{out - item * each.outs, in - item * each.ins};
    return std::find(inplace.begin(), inplace.end(), pair) != inplace.end();
  }
};

}  // namespace tg
