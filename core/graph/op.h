// Op: an operation as one constant object, defined in one file of ops/, with its shape rule, its gradient,
// its decomposition and its sample inputs. Kernels belong to the backends, which find them by the op's name.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <tilegrad/core/base/attrs.h>
#include <tilegrad/core/base/host_view.h>
#include <tilegrad/core/base/layout.h>
#include <tilegrad/core/graph/tensor.h>

namespace tg {

// An input or output of an op, as its shape rule and its cost see it.
struct Operand {
  DType dtype;
  Layout layout;
  const Shape& shape() const { return layout.shape; }
};

namespace detail {
// What an op got, for its errors: "; got f32 [4, 8], f32 [9, 3] with causal=true", for operands with a dtype
// and a layout.
template <class Operands>
std::string got_text(const Operands& in, const Attrs& attrs) {
  std::string got;
  for (const auto& x : in)
    got += (got.empty() ? "; got " : ", ") + std::string(name_of(x.dtype)) + " " + x.layout.shape.text();
  const std::string settings = attrs.non_default_text();
  if (!settings.empty()) got += (got.empty() ? "; got " : " with ") + settings;
  return got;
}
}  // namespace detail

// One output of an op, as its shape rule returns it.
struct OutSpec {
  DType dtype;
  Layout layout;     // within memory of its own, or within that of the input it is a view of
  int view_of = -1;  // index of that input; -1 for an output that is not a view
};

// The arguments of a vector-Jacobian product: the node's inputs and outputs, and z = ∂L/∂out of each output,
// with the output's shape and dtype, undefined where no gradient arrives.
struct Backprop {
  std::span<const Tensor> in, out, z;
  const Attrs& attrs;
  const std::vector<bool>& needed;  // by input: whether its gradient is needed; otherwise it may be undefined
};

struct Cost {
  double flops = 0, bytes = 0;
};

// Whether a program may compute an op's results again instead of keeping them
// (CompileOptions::memory_budget). An op that it may depends on its operands and attributes only.
enum class Recompute {
  never,
  cheap,  // it takes about as long as a copy of its operands
  costly  // its time is that of its FLOPs
};

// A pointwise function of one operand that the kernel of a matrix product can also compute.
enum class Epilogue : unsigned char { none, gelu, gelu_tanh };

// In which way ranks exchange data.
enum class Collective : unsigned char {
  none,
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  ppermute,
  local_shard  // each rank keeps its piece, without an exchange
};

// How gradcheck and the tests fill an input of a sample.
struct Fill {
  enum Kind {
    normal,    // standard normal
    uniform,   // [low, high)
    distinct,  // evenly spaced in [low, high], shuffled: no two elements are close (for max, sort, top_k)
    index,     // integers in [low, high); not all of them low, where there are others
    bits,      // booleans
    off_zero   // ±[low, high): away from a kink at 0
  } kind = normal;
  double low = -1, high = 1;
};

struct SampleInput {
  Shape shape;
  Fill fill = {};
  std::optional<DType> dtype = {};  // of an index, mask or key; none: the floating dtype under test
  std::vector<double> values = {};  // these numbers in row-major order, not drawn ones: a special point
};

// How a sample calls its op, whose results the function returns: a list, or a tensor if there is one.
class SampleCall : public std::function<std::vector<Tensor>(std::span<const Tensor>)> {
 public:
  SampleCall() = default;
  template <class F>
  requires(!std::is_same_v<F, SampleCall> && std::is_invocable_v<F, std::span<const Tensor>>) SampleCall(F f)
      : function([f = std::move(f)](std::span<const Tensor> x) {
          if constexpr (std::is_same_v<std::invoke_result_t<F, std::span<const Tensor>>, Tensor>)
            return std::vector<Tensor>{f(x)};
          else
            return f(x);
        }) {}
};

// One way to call the op: its gradient is checked, its results are compared across dtypes, views and
// backends, and it is benchmarked.
struct Sample {
  std::string name;
  std::vector<SampleInput> inputs;
  SampleCall call = {};
  // At a special point, where a difference quotient cannot decide (a tie, a kink, −∞): the floating outputs,
  // and the gradient of the sum of their elements by each floating input.
  struct Expected {
    std::vector<std::vector<double>> outputs, gradients;
  };
  std::optional<Expected> expected = {};
};

struct Op {
  std::string name;

  // What it computes, in one line: "inputs → outputs: formula", with the operands' names and a ? after each
  // optional one. The text of docs/ops.md (gradcheck --reference).
  std::string doc = {};

  // Shape rule: dtype and layout of each output. Throws ShapeError or DTypeError with the reason only: the
  // graph adds the layer, the op, the inputs and the line.
  std::function<std::vector<OutSpec>(std::span<const Operand>, const Attrs&)> infer = {};

  // Vector-Jacobian product: z_in of each input as graph nodes, undefined where there is none. Without a vjp
  // the decomposition is differentiated, unless `not_differentiable` says why the op has no gradient: then
  // gradients() throws GradientError with that reason if a gradient would have to pass.
  std::function<std::vector<Tensor>(const Backprop&)> vjp = {};
  std::string not_differentiable = {};

  // The same outputs from simpler ops. Fused ops must have one: it is their reference in tests, their second
  // derivative and their fallback.
  std::function<std::vector<Tensor>(std::span<const Tensor>, const Attrs&)> decompose = {};

  std::function<std::vector<Sample>()> samples = {};

  // A kernel in the op itself, as a function on host memory, for backends that have no kernel for the op.
  // Operands must be row-major. User-defined ops have one (autograd/custom_op.h).
  HostKernel host = {};

  // FLOPs of one evaluation, and bytes that it moves beyond reading each input and writing each output once.
  // Without it both are 0.
  std::function<Cost(std::span<const Operand> in, std::span<const Operand> out, const Attrs&)> cost = {};

  // The most roundings in a row between an input and a result of one evaluation. A sum of n terms has n in
  // any order of addition: that of the first product, and those of n - 1 partial sums. Without it 1.
  // gradcheck derives its bounds of rounding errors from it.
  std::function<double(std::span<const Operand> in, std::span<const Operand> out, const Attrs&)> roundings =
      {};

  // Element i of the output depends only on element i of the inputs, all of one shape. Such ops are fused
  // into chains.
  bool pointwise = false;
  // A pointwise op whose output is the input in another dtype.
  bool converts = false;
  // A pointwise op of two operands: 1 if y = a + b, −1 if y = a − b, 0 for other ops.
  int adds = 0;
  // A reduction of one tensor over axes whose kernels also compute the chain that makes the tensor.
  bool reduces_chains = false;
  // A reduction whose result is the sum of the elements.
  bool sums = false;
  // Its output is operand 0 times operand 1, matrices or batches of them.
  bool product = false;
  // A pointwise op that the kernel of the product before it may also compute.
  Epilogue epilogue = Epilogue::none;
  // That kernel may compute it from results that are not rounded yet. Passes do not merge it with other ops
  // there.
  bool unrounded_epilogue = false;
  // A kernel may also add a tensor to output 0 before it stores it.
  bool accepts_sum = false;
  // Output i is operand 2i with rows of operand 2i + 1 in the place of some rows.
  bool assigns = false;
  // Whether the op needs the Communicator of a group of ranks, and for what. Its attributes are RankAttrs.
  Collective collective = Collective::none;
  // A collective op that runs as soon as its operands exist: a rank then needs less memory.
  bool early = false;
  // The number of an optional operand that kernels add to the result; −1: there is none. The compiler passes
  // a tensor that is added to the result as this operand.
  int addend = -1;
  Recompute recompute = Recompute::never;
  // Its operand is meant to get no gradient.
  bool stops_gradient = false;
  // Kernels can write results of any strides, so that the compiler may place a result inside another's
  // memory.
  bool strided_results = false;
  // For an op that only concatenates its inputs: the axis.
  int (*join_axis)(const Attrs&) = nullptr;
  // A view: no kernel and no memory; outputs are views of input 0.
  bool view = false;
  // A leaf: an input, a parameter or a constant, whose value is given from outside the run.
  bool leaf = false;
  // gradcheck does not check its second derivative: it has none, or checking it takes too long.
  bool first_order_only = false;
  // {output, input} pairs that may share memory when the input is not read afterwards. For list ops (`outs`
  // outputs and `ins` inputs per tensor) they are the first tensor's pairs, which repeat for the others.
  std::vector<std::pair<int, int>> inplace = {};
  struct {
    int outs = 0, ins = 0;
  } each = {};
  // Where the op is defined; the file names the op's family.
  Where where = Where::current();

  bool may_share(int out, int in) const {
    const int item = each.outs > 0 ? out / each.outs : 0;
    const std::pair pair{out - item * each.outs, in - item * each.ins};
    return std::find(inplace.begin(), inplace.end(), pair) != inplace.end();
  }
};

// Creates an op of the library: `const Op& add_op = *define_op({.name = "add", …});`. The op is never
// destroyed. If several shared objects of a process contain the library, the dynamic linker gives them one
// add_op, and each of them runs this initialiser: calls after the first return the op that the first one
// made. Throws Error if another line defined an op of that name.
const Op* define_op(Op op);  // a pointer: for a reference, compilers warn of one to a temporary

}  // namespace tg
