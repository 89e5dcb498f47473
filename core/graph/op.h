// Op: one constant object per operation. A file in ops/ defines it, with shape rule, gradient, decomposition
// and sample inputs. Backends contain the kernels and find them by the op's name.
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

// An input or output of an op, as passed to its shape rule and its cost function.
struct Operand {
  DType dtype;    // element type
  Layout layout;  // shape, strides and offset
  // The shape.
  const Shape& shape() const { return layout.shape; }
};

namespace detail {
// The operands and attributes of a call, for error messages: "; got f32 [4, 8], f32 [9, 3] with causal=true".
// An operand has a dtype and a layout.
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
  DType dtype;       // element type
  Layout layout;     // relative to its memory, which a view shares with an input
  int view_of = -1;  // the output is a view of this input; −1: not a view
};

// The arguments of a vector-Jacobian product.
struct Backprop {
  std::span<const Tensor> in;   // the node's inputs
  std::span<const Tensor> out;  // its outputs
  // z = ∂L/∂out for each output, in the shape and dtype of the output. Undefined if no gradient arrives.
  std::span<const Tensor> z;
  const Attrs& attrs;  // the node's attributes
  // per input: whether its gradient is needed; other gradients may be undefined
  const std::vector<bool>& needed;
};

// The cost of one evaluation of an op.
struct Cost {
  double flops = 0, bytes = 0;  // floating-point operations, and bytes read and written
};

// Whether a program may recompute an op's results instead of keeping them (CompileOptions::memory_budget).
// The results of a recomputable op depend only on its operands and attributes.
enum class Recompute {
  never,  // results are always kept
  cheap,  // takes about as long as a copy of its operands
  costly  // compute-bound: the FLOPs determine its time
};

// A pointwise function of one operand that a GEMM kernel can also compute in its epilogue.
enum class Epilogue : unsigned char {
  none,      // no such function
  gelu,      // gelu() of ops/ops.h
  gelu_tanh  // gelu_tanh() of ops/ops.h
};

// Kind of collective that an op performs.
enum class Collective : unsigned char {
  none,            // the op does not communicate
  all_reduce,      // sum over ranks; ops/ranks.h describes all collectives
  all_gather,      // concatenation of the ranks' shards
  reduce_scatter,  // shard of the sum over ranks
  all_to_all,      // exchange of shards between all ranks
  ppermute,        // exchange between ranks at a fixed distance
  local_shard      // each rank keeps its shard, without communication
};

// How gradcheck and the tests fill an input of a sample.
struct Fill {
  // The distribution of the values.
  enum Kind {
    normal,    // standard normal
    uniform,   // [low, high)
    distinct,  // evenly spaced in [low, high] and shuffled, so no two elements are close
    index,     // random integers in [low, high); at least one is above `low` if possible
    bits,      // random booleans
    off_zero   // ±[low, high): away from a kink at 0
  };
  Kind kind = normal;         // the distribution
  double low = -1, high = 1;  // limits; their meaning depends on the kind
};

// One input of a sample.
struct SampleInput {
  Shape shape;                      // shape of the input
  Fill fill = {};                   // distribution of its values
  std::optional<DType> dtype = {};  // set for indices, masks and keys; default: the floating dtype under test
  // Fixed values in row-major order, for a special point. If empty, values are random.
  std::vector<double> values = {};
};

// The function of a sample: calls the op and returns its results, as a list or as one tensor.
class SampleCall : public std::function<std::vector<Tensor>(std::span<const Tensor>)> {
 public:
  // An empty call.
  SampleCall() = default;
  // Wraps a function of the inputs that returns a Tensor or a list.
  template <class F>
  requires(!std::is_same_v<F, SampleCall> && std::is_invocable_v<F, std::span<const Tensor>>) SampleCall(F f)
      : function([f = std::move(f)](std::span<const Tensor> x) {
          if constexpr (std::is_same_v<std::invoke_result_t<F, std::span<const Tensor>>, Tensor>)
            return std::vector<Tensor>{f(x)};
          else
            return f(x);
        }) {}
};

// One way to call an op. gradcheck checks its gradient, tests compare its results across dtypes, views and
// backends, and a benchmark measures it.
struct Sample {
  std::string name;                 // name of the sample, for example "rows"
  std::vector<SampleInput> inputs;  // arguments of `call`, in order
  SampleCall call = {};             // the function that is checked
  // Known results at a special point, such as a tie, a kink or −∞. Difference quotients do not exist there.
  struct Expected {
    std::vector<std::vector<double>> outputs;    // the floating outputs
    std::vector<std::vector<double>> gradients;  // gradients of the outputs' sum, per floating input
  };
  std::optional<Expected> expected = {};  // default: difference quotients
  bool cpu_only = false;                  // whether only the CPU has kernels for this call
};

// The definition of an operation.
struct Op {
  // Unique name. Backends find the kernels by this name.
  std::string name;

  // One line of documentation, "inputs → outputs: formula". It contains the names of the operands, with a ?
  // after each optional operand. `gradcheck --reference` copies it to docs/ops.md.
  std::string doc = {};

  // Shape rule: returns the dtype and layout of each output. Throws ShapeError or DTypeError with only the
  // reason as the message. The graph adds the layer, the op, the inputs and the source line.
  std::function<std::vector<OutSpec>(std::span<const Operand>, const Attrs&)> infer = {};

  // Vector-Jacobian product: returns z_in for each input as graph nodes. z_in is undefined if the input has
  // no gradient. If this function is empty and `not_differentiable` is not set, the decomposition is
  // differentiated.
  std::function<std::vector<Tensor>(const Backprop&)> vjp = {};
  // Why the op has no gradient. gradients() throws GradientError with this reason if a gradient would pass
  // through the op.
  std::string not_differentiable = {};

  // Computes the same outputs from simpler ops. Ops that fuse several others must have it. Tests compare the
  // op with it. It also provides second derivatives and serves as fallback.
  std::function<std::vector<Tensor>(std::span<const Tensor>, const Attrs&)> decompose = {};

  // The samples for gradcheck, tests and benchmarks.
  std::function<std::vector<Sample>()> samples = {};

  // A kernel as a function on host memory, for backends without a kernel for the op. Operands must be
  // row-major. User-defined ops use it (autograd/custom_op.h).
  HostKernel host = {};

  // FLOPs and additional bytes of one evaluation. The bytes do not include one read per input and one write
  // per output. If the function is empty, both are 0.
  std::function<Cost(std::span<const Operand> in, std::span<const Operand> out, const Attrs&)> cost = {};

  // Maximum number of consecutive roundings between an input and a result of one evaluation. A sum of n
  // products has n roundings in any order of addition: one product and n − 1 partial sums. If the function is
  // empty, the number is 1. gradcheck derives bounds on rounding errors from it.
  std::function<double(std::span<const Operand> in, std::span<const Operand> out, const Attrs&)> roundings =
      {};

  // Element i of the output depends only on element i of each input; all inputs have one shape. Such ops are
  // fused into one elementwise kernel.
  bool pointwise = false;
  // A pointwise op that jumps at arbitrarily large arguments. Difference quotients with large steps do not
  // give its derivative there.
  bool jumps = false;
  // A pointwise op whose output is its input in a different dtype.
  bool converts = false;
  // For a pointwise op of two operands: 1 if y = a + b, −1 if y = a − b. 0 for other ops.
  int adds = 0;
  // A reduction of one tensor over axes. Its kernels can also compute the elementwise ops before it.
  bool fuses_elementwise = false;
  // A reduction whose result is the sum of the elements.
  bool sums = false;
  // A GEMM: the output is operand 0 times operand 1. Both are matrices or batches of matrices.
  bool product = false;
  // A pointwise op that the kernel of the preceding GEMM can also compute.
  Epilogue epilogue = Epilogue::none;
  // The GEMM kernel may apply the epilogue before it rounds the product. Passes then do not fuse the op with
  // other ops.
  bool unrounded_epilogue = false;
  // A kernel can also add a tensor to output 0 before it stores it.
  bool accepts_sum = false;
  // Output i is operand 2i with some rows replaced by rows of operand 2i + 1.
  bool assigns = false;
  // The collective that the op performs. It needs the Communicator of the ranks. The op's attributes are
  // RankAttrs.
  Collective collective = Collective::none;
  // A collective op that runs as soon as its operands exist. A rank then needs less memory.
  bool early = false;
  // Index of an optional operand that kernels add to the result; −1: none. If the program adds a tensor to
  // the result, the compiler passes the tensor as this operand.
  int addend = -1;
  // Whether a program may recompute the results.
  Recompute recompute = Recompute::never;
  // The op exists to cut the gradient of its operand.
  bool stops_gradient = false;
  // Kernels can write results with any strides, so the compiler may store a result inside the memory of a
  // larger value.
  bool strided_results = false;
  // Returns the axis of an op that only concatenates its inputs. Null for other ops.
  int (*join_axis)(const Attrs&) = nullptr;
  // A view: it has no kernel and no memory, and its outputs are views of input 0.
  bool view = false;
  // A leaf: an input, a parameter or a constant. Its value is set before the run.
  bool leaf = false;
  // gradcheck does not check the second derivative, because it does not exist or the check would be too slow.
  bool first_order_only = false;
  // {output, input} pairs that may share memory if the input is not read afterwards. An op on a list contains
  // the pairs of the first tensor; the same pairs apply to each other tensor.
  std::vector<std::pair<int, int>> inplace = {};
  // For ops on lists: the number of outputs and inputs per tensor.
  struct {
    int outs = 0, ins = 0;  // 0 for other ops
  } each = {};
  // The source line of the definition. docs/ops.md lists the file.
  Where where = Where::current();

  // Whether this output may share memory with this input, according to `inplace`.
  bool may_share(int out, int in) const {
    const int item = each.outs > 0 ? out / each.outs : 0;
    const std::pair pair{out - item * each.outs, in - item * each.ins};
    return std::find(inplace.begin(), inplace.end(), pair) != inplace.end();
  }
};

// Creates an op of the library: `const Op& add_op = *define_op({.name = "add", …});`. The op is never
// destroyed. If several shared objects of a process contain the library, the dynamic linker gives them a
// single add_op, and each object runs this initializer. The first call defines the op, and later calls return
// it. Throws Error if an op of the same name was defined at a different line.
const Op* define_op(Op op);  // a pointer, because compilers warn about a reference to a temporary

}  // namespace tg
