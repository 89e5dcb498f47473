// Every operation, as functions on tensors. Each group names the file that defines it; ops/registry.cpp lists
// the definitions. Arguments are tensors or numbers; shapes broadcast by NumPy's rule; mixed floating dtypes
// are promoted to the wider one. Errors are ShapeError and DTypeError with the op, the operands and the
// caller's line.
#pragma once

#include <tilegrad/core/graph/graph.h>
#include <tilegrad/ops/block_norms.h>
#include <tilegrad/ops/flash_attn.h>
#include <tilegrad/ops/paged_attn.h>

namespace tg {

// pointwise.cpp: element by element, any shape
Tensor add(TensorArg a, TensorArg b);
Tensor sub(TensorArg a, TensorArg b);
Tensor mul(TensorArg a, TensorArg b);
Tensor div(TensorArg a, TensorArg b);      // floating only
Tensor pow(TensorArg a, TensorArg b);      // floating only
Tensor maximum(TensorArg a, TensorArg b);  // NaN in either gives NaN; equal operands share the gradient
Tensor minimum(TensorArg a, TensorArg b);
Tensor neg(TensorArg x);
Tensor abs(TensorArg x);
Tensor sign(TensorArg x);
Tensor sqrt(TensorArg x);
Tensor rsqrt(TensorArg x);
Tensor exp(TensorArg x);
Tensor log(TensorArg x);
Tensor sin(TensorArg x);
Tensor cos(TensorArg x);
Tensor tanh(TensorArg x);
Tensor erf(TensorArg x);
Tensor sigmoid(TensorArg x);
Tensor relu(TensorArg x);  // gradient 0 at 0
Tensor silu(TensorArg x);  // x·sigmoid(x)
Tensor gelu(TensorArg x);  // x·Φ(x), by erf
Tensor gelu_tanh(TensorArg x);
Tensor silu_slope(TensorArg x);  // the derivatives of the three
Tensor gelu_slope(TensorArg x);
Tensor gelu_tanh_slope(TensorArg x);
Tensor clamp(TensorArg x, double low, double high);           // gradient 1 inside [low, high]
Tensor where(TensorArg condition, TensorArg a, TensorArg b);  // condition boolean
Tensor equal(TensorArg a, TensorArg b);                       // comparisons give booleans
Tensor not_equal(TensorArg a, TensorArg b);
Tensor less(TensorArg a, TensorArg b);
Tensor less_equal(TensorArg a, TensorArg b);
Tensor greater(TensorArg a, TensorArg b);
Tensor greater_equal(TensorArg a, TensorArg b);
Tensor logical_and(TensorArg a, TensorArg b);
Tensor logical_or(TensorArg a, TensorArg b);
Tensor logical_not(TensorArg x);

inline Tensor operator+(TensorArg a, TensorArg b) {
  return add(a, b);
}
inline Tensor operator-(TensorArg a, TensorArg b) {
  return sub(a, b);
}
inline Tensor operator*(TensorArg a, TensorArg b) {
  return mul(a, b);
}
inline Tensor operator/(TensorArg a, TensorArg b) {
  return div(a, b);
}
inline Tensor operator-(TensorArg x) {
  return neg(x);
}

// copy.cpp: copies and conversions
Tensor cast(TensorArg x, DType dtype);  // rounds to nearest even; to integers towards zero; to bool by x ≠ 0
Tensor copy(TensorArg x);               // the same layout, in separate memory
Tensor contiguous(TensorArg x);         // x itself if it is row-major, else a row-major copy
Tensor stop_gradient(TensorArg x);      // a view through which no gradient passes

// view.cpp: metadata only [Stratos, FlashAttention §B.3]; also methods of Tensor
Tensor permute(TensorArg x, const Axes& order);
Tensor transpose(TensorArg x, std::int64_t a, std::int64_t b);
Tensor view(TensorArg x, const Shape& shape);
Tensor reshape(TensorArg x, const Shape& shape);
Tensor expand(TensorArg x, const Shape& shape);
Tensor slice(TensorArg x, std::int64_t axis, std::int64_t start, std::int64_t stop, std::int64_t step = 1);
Tensor squeeze(TensorArg x, std::int64_t axis);
Tensor unsqueeze(TensorArg x, std::int64_t axis);

// slice.cpp: a part of an axis written or read by copy. A start given by a tensor (i64 or i32, one element)
// may differ from run to run; the run fails with an Error if the part does not lie within the axis.
Tensor slice_assign(TensorArg x, TensorArg src, std::int64_t axis, std::int64_t start, std::int64_t step = 1);
Tensor slice_assign(TensorArg x, TensorArg src, std::int64_t axis,
                    TensorArg start);  // x with src at start, start + 1, …
Tensor slice_at(TensorArg x, std::int64_t axis, TensorArg start, std::int64_t length);

// concat.cpp: tensors split (views) and joined (copies)
std::vector<Tensor> split(TensorArg x, const std::vector<std::int64_t>& sizes, std::int64_t axis = 0);
std::vector<Tensor> chunk(TensorArg x, std::int64_t n,
                          std::int64_t axis = 0);                // n parts, the last may be smaller
std::vector<Tensor> unbind(TensorArg x, std::int64_t axis = 0);  // its slices, without the axis
Tensor concat(const std::vector<Tensor>& parts, std::int64_t axis = 0, Where where = Where::current());
Tensor stack(const std::vector<Tensor>& parts, std::int64_t axis = 0,  // along a new axis
             Where where = Where::current());
// before[a] and after[a] elements of `value` around axis a
Tensor pad(TensorArg x, const Dims& before, const Dims& after, double value = 0);

// index.cpp: rows by index. Indices are i64 or i32, from 0; one out of range fails the run with an Error.
// With the unit roundoff u of the compute type, |error| of a sum of slices ≤ (2¹² + 1)·u·Σ|x|.
Tensor embedding(TensorArg weight, TensorArg indices);  // [V, C], [...] → [..., C]
Tensor index_select(TensorArg x, std::int64_t axis,
                    TensorArg indices);  // x's axis replaced by the indices' axes
Tensor index_add(TensorArg x, std::int64_t axis, TensorArg indices,
                 TensorArg src);  // x with src's slices added, repeats summed

// index_assign.cpp: x with src's slices at these places of an axis; index −1: a slice goes nowhere; of equal
// indices the last counts. Indices as above; src's shape is x's with the axis replaced by the indices' axes.
Tensor index_assign(TensorArg x, std::int64_t axis, TensorArg indices, TensorArg src);
// The same places of several tensors of one dtype, in one step.
std::vector<Tensor> index_assign_each(const std::vector<Tensor>& xs, std::int64_t axis, TensorArg indices,
                                      const std::vector<Tensor>& srcs);

// gather.cpp: elements by index, one index per element (PyTorch's gather and scatter_add);
// scatter_add adds up floats in f64 or, on a GPU, as index_add
Tensor gather(TensorArg x, std::int64_t axis,
              TensorArg indices);  // [a, i[a, b], …] of x, in the indices' shape
Tensor scatter_add(TensorArg x, std::int64_t axis, TensorArg indices,
                   TensorArg src);  // x with src added there, in order
// [...] → [..., n], all in memory: to count indices, or to add up by index, take index_add().
Tensor one_hot(TensorArg indices, std::int64_t n, DType dtype = i64);

// top_k.cpp: {values, i64 indices} of the k largest, in descending order; the first of equal ones; NaN is
// largest
std::vector<Tensor> top_k(TensorArg x, std::int64_t k, std::int64_t axis = -1);

// sample.cpp: a token i32 [B] for each row of logits [B, V], drawn from softmax(logits / temperature).
// `keys`, i64 [B, 2], has {seed, k}: token k of a text drawn under a seed is the same whatever else is in the
// batch, and the same on every backend. temperature, top_k (0: all) and top_p (1: all) are numbers, or have
// one for each row: floating, i64 or i32, and floating. They mean what they do in nn::Sampling
// (nn/generation/sampling.h), and equal logits give nn::sample_token's tokens. A row of NaN gives −1.
Tensor sample(TensorArg logits, TensorArg temperature, TensorArg keys, TensorArg top_k = {},
              TensorArg top_p = {});

// cumsum.cpp: sums of all elements up to each one; reverse: of each one and all after it. Floats are added up
// in f64, and each sum is rounded once to x's dtype.
Tensor cumsum(TensorArg x, std::int64_t axis, bool reverse = false);

// arange.cpp: start, start + step, … before stop
Tensor arange(Graph& graph, double start, double stop, double step = 1, DType dtype = i64,
              Where where = Where::current());
Tensor tril(TensorArg x, std::int64_t diagonal = 0);  // x with zeros above the diagonal of its last two axes
Tensor triu(TensorArg x, std::int64_t diagonal = 0);  // … below it
Tensor flip(TensorArg x, std::int64_t axis);          // the axis reversed

// full.cpp (full itself: core/graph/graph.h)
Tensor zeros_like(TensorArg x);
Tensor ones_like(TensorArg x);
Tensor full_like(TensorArg x, double value);

// reduce.cpp: over the given axes, or over all if none are given; keepdim keeps them with size 1. Half types
// accumulate in f32, and the result does not depend on the number of threads. Sums are added up in blocks:
// |error| ≤ (n/min(r, 256) + 2¹⁰)·u·Σ|x| for n elements in runs of r at one stride, with the unit roundoff u
// of the compute type.
Tensor sum(TensorArg x, const Axes& axes = {}, bool keepdim = false);   // i64 for integers and booleans
Tensor prod(TensorArg x, const Axes& axes = {}, bool keepdim = false);  // the same
Tensor mean(TensorArg x, const Axes& axes = {}, bool keepdim = false);
Tensor sum_squares(TensorArg x, const Axes& axes = {}, bool keepdim = false);  // f32 for half types
Tensor max(TensorArg x, const Axes& axes = {}, bool keepdim = false);  // NaN if there is one; equal elements
Tensor min(TensorArg x, const Axes& axes = {}, bool keepdim = false);  // share the gradient equally
// Σ(x - mean)² / (n - correction)
Tensor var(TensorArg x, const Axes& axes = {}, bool keepdim = false, double correction = 1);
// Row-major number within the reduced axes of the first largest (smallest) element, i64; NaN counts as it.
Tensor argmax(TensorArg x, const Axes& axes = {}, bool keepdim = false);
Tensor argmin(TensorArg x, const Axes& axes = {}, bool keepdim = false);
Tensor any(TensorArg x, const Axes& axes = {}, bool keepdim = false);  // boolean: is any not 0?
Tensor all(TensorArg x, const Axes& axes = {}, bool keepdim = false);  // are all not 0?
// x summed over the axes that broadcasting stretched: the gradient of expand. `shape` must broadcast to x's.
Tensor sum_to(TensorArg x, const Shape& shape);

// softmax.cpp: by the online normaliser, in f32 for half types. A row of which every element is -∞ gives NaN
// in softmax and log_softmax (as in PyTorch; attention is flash_attn's, which gives 0), -∞ in logsumexp.
Tensor softmax(TensorArg x, std::int64_t axis = -1);
Tensor log_softmax(TensorArg x, std::int64_t axis = -1);
Tensor logsumexp(TensorArg x, const Axes& axes = {}, bool keepdim = false);

// norm.cpp: over the last axis; weight and bias have its size, or are left out. Statistics in f32 for half
// types.
Tensor layer_norm(TensorArg x, TensorArg weight = {}, TensorArg bias = {}, double eps = 1e-5);
Tensor rms_norm(TensorArg x, TensorArg weight = {}, double eps = 1e-6);

// cross_entropy.cpp: logits [..., V], targets [...] of type i64 or i32; f32 for half types. A target that is
// neither ignore_index nor 0 … V-1 fails the run with an Error. The mean is over the targets that are not
// ignored, and 0 (not NaN as in PyTorch) if all of them are.
enum class Reduction { mean, sum, none };
struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;
  Reduction reduction = Reduction::mean;
  double label_smoothing = 0;  // the share of the target's probability that is spread evenly over all classes
};
Tensor cross_entropy(TensorArg logits, TensorArg targets, const CrossEntropyOptions& options = {});

// rope.cpp: x [..., L, d], rows rotated by their positions: start, start + 1, … along L, or given as i64 or
// i32 that broadcast to [..., L] ([L], [B, 1, L]).
struct RopeOptions {
  double theta = 10000;      // pair i of n is rotated by position·theta^(-i/n) …
  std::int64_t dims = 0;     // … for the first `dims` elements of a row; 0: all
  bool interleaved = false;  // pairs (2i, 2i + 1), as in the paper; else (i, i + n), as in Llama's weights
  std::int64_t start = 0;
  std::vector<double> frequencies = {};  // one per pair, instead of theta and dims (extended contexts)
};
Tensor rope(TensorArg x, TensorArg positions = {}, const RopeOptions& options = {});
// theta^(-2i/dims), i from 0; throws ShapeError unless dims is 0 to 2^20.
std::vector<double> rope_frequencies(std::int64_t dims, double theta);

// pointwise.cpp
Tensor swiglu(TensorArg gate, TensorArg value);  // silu(gate) ⊛ value
Tensor swiglu(TensorArg packed);                 // [..., 2n]: gates, then values

// random.cpp: the same numbers on every backend, from the program's seed and the run's number; a new run
// draws new ones. core/base/rng.h and core/base/random.h define the numbers of element i.
// p and the probability of bernoulli hold to within 2^-32, 0 and 1 exactly.
Tensor dropout(TensorArg x, double p, bool training = true);  // zero with probability p, else x/(1 - p)
// low ≤ x < high in every dtype: of numbers that rounding would move out, the dtype's nearest in the
// interval. Throws Error for an interval without numbers of the dtype, or whose ends are not finite.
Tensor uniform(Graph& graph, const Shape& shape, double low = 0, double high = 1, DType dtype = f32,
               Where where = Where::current());
// Finite if the dtype has mean ± 6.77·std.
Tensor normal(Graph& graph, const Shape& shape, double mean = 0, double std = 1, DType dtype = f32,
              Where where = Where::current());
Tensor bernoulli(Graph& graph, const Shape& shape, double p, Where where = Where::current());
Tensor randint(Graph& graph, const Shape& shape, std::int64_t low, std::int64_t high, DType dtype = i64,
               Where where = Where::current());  // low ≤ x < high

// adamw.cpp: {p', m', v'} after one step with gradient scale·g; step counts from 1. A scale of 0 skips the
// step: p, m and v stay as they are. The scalars may be numbers or tensors of one element. The results are
// meant to be assigned to the parameters p, m and v.
struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999;  // at least 0 and below 1
  double eps = 1e-8;                  // a normal number of f32: with 0, a gradient of 0 would give NaN
  double weight_decay = 0.01;         // at least 0

  void check(std::string_view who) const;  // throws Error that names the option out of its range
};
std::array<Tensor, 3> adamw(TensorArg p, TensorArg g, TensorArg m, TensorArg v, TensorArg learning_rate,
                            TensorArg step, TensorArg scale = 1, const AdamWOptions& options = {});
// The same for a list of parameters in one step of the program, each with its own decay instead of the
// options' one.
struct AdamWTensors {
  Tensor p, g, m, v;
  double weight_decay = 0;
  std::optional<DType> copy = {};  // of p' in this dtype, another than its own
};
struct AdamWResults {
  Tensor p, m, v;
  Tensor copy;  // undefined where none was asked for
};
std::vector<AdamWResults> adamw(const std::vector<AdamWTensors>& all, TensorArg learning_rate, TensorArg step,
                                TensorArg scale = 1, const AdamWOptions& options = {});

// squared_norm.cpp: Σ x² over all elements of all tensors, which may differ in shape and dtype; [] f32, f64
// if one of them is. global_norm: √Σ x², also if Σ x² is outside the range of that dtype.
Tensor squared_norm(const std::vector<Tensor>& xs, Where where = Where::current());
Tensor global_norm(const std::vector<Tensor>& xs, Where where = Where::current());
// The same file: of each x, √Σ x² over elements 0 … norm_block − 1, the next norm_block, … in row-major
// order, the last block with what is left: [⌈n/norm_block⌉] f32, f64 for f64.
std::vector<Tensor> block_norms(const std::vector<Tensor>& xs, Where where = Where::current());

// matmul.cpp: over the last two axes; leading axes broadcast, and operands of any strides are read without a
// copy. A vector a is treated as a row, a vector b as a column, and that axis is dropped from the result (as
// in PyTorch). Row-major result. On the CPU products are added up in chunks of k: with the unit
// roundoff u of the compute type, |error| ≤ (k/384 + 4096)·u·Σ|a·b|. On a GPU, libraries choose the order.
Tensor matmul(TensorArg a, TensorArg b);
// The same in the type in which it is added up: f32 for bf16 and f16, so that the result is not rounded.
Tensor matmul_wide(TensorArg a, TensorArg b);
Tensor linear(TensorArg x, TensorArg w,
              TensorArg bias = {});  // x·w + bias: x [..., in], w [in, out], bias [out]

// flash_attn.h: flash_attn, standard_attn
// Boolean [B, H, L, T]: what attention dropout keeps, from the counters of core/base/rng.h; rng is
// graph.rng().
Tensor attention_keep_mask(TensorArg rng, const Shape& shape, double dropout, std::int64_t stream);

// Definitions that other files use by name, to find them in a graph or to record them with other attributes.
extern const Op &add_op, &sub_op, &contiguous_op, &index_assign_op, &concat_op, &matmul_op, &dropout_op,
    &rope_op, &adamw_op, &flash_attn_op, &flash_attn_backward_op;

// The built-in or registered op of that name; null if there is none.
std::vector<const Op*> all_ops();
const Op* find_op(std::string_view name);
// Adds a user-defined op, which is then checked like a built-in one. Throws Error if the name is taken. Any
// thread may call these three functions at any time.
const Op& register_op(Op op);

}  // namespace tg
