// All tensor operations, as free functions that record nodes in a graph. Comments name the files that define
// the ops. ops/registry.cpp lists all ops, and docs/ops.md is generated from the definitions.
//
// Conventions for all ops:
// - An argument is a tensor or a number. A number gets the dtype of the tensor operand.
// - Elementwise ops broadcast shapes by NumPy's rule.
// - Mixed dtypes are promoted. Two floating dtypes give the wider one, and bf16 with f16 gives f32. A
//   floating and an integer dtype give the floating one. Two integer dtypes give the wider one. A boolean is
//   promoted to the other dtype.
// - Negative axes count from the end. A rank is at most 8.
// - 16-bit floating dtypes (bf16, f16) are computed in f32, and each result is rounded once.
// - Invalid arguments throw ShapeError, DTypeError or Error when the op is recorded. The message names the
//   op, its operands and the caller's source line. Tensors of different graphs throw Error.
// - Values are checked when the program runs: an index out of range fails the run with an Error.
#pragma once

#include <tilegrad/core/graph/graph.h>
#include <tilegrad/ops/block_norms.h>
#include <tilegrad/ops/flash_attn.h>
#include <tilegrad/ops/paged_attn.h>

namespace tg {

// Returns a + b. Defined in pointwise.cpp, as are all elementwise ops up to logical_not(). Throws DTypeError
// for booleans.
Tensor add(TensorArg a, TensorArg b);
// Returns a − b. Throws DTypeError for booleans.
Tensor sub(TensorArg a, TensorArg b);
// Returns the elementwise product a ⊛ b. Throws DTypeError for booleans.
Tensor mul(TensorArg a, TensorArg b);
// Returns a / b. Throws DTypeError unless the promoted dtype is floating.
Tensor div(TensorArg a, TensorArg b);
// Returns a to the power b. Throws DTypeError unless the promoted dtype is floating.
Tensor pow(TensorArg a, TensorArg b);
// Returns a − b·⌊a/b⌋, which has the sign of b, like torch.remainder. It is exact if |a/b| < 2²⁴ in f32 and
// 2⁵³ in f64. Throws DTypeError unless the promoted dtype is floating.
Tensor remainder(TensorArg a, TensorArg b);
// Returns the larger of a and b, or NaN if either is NaN. Equal operands each get half the gradient, as in
// torch.maximum. Throws DTypeError for booleans.
Tensor maximum(TensorArg a, TensorArg b);
// Returns the smaller of a and b, or NaN if either is NaN. Equal operands each get half the gradient, as in
// torch.minimum. Throws DTypeError for booleans.
Tensor minimum(TensorArg a, TensorArg b);
// Returns −x. Throws DTypeError for booleans.
Tensor neg(TensorArg x);
// Returns |x|; the gradient at 0 is 0. Throws DTypeError for booleans.
Tensor abs(TensorArg x);
// Returns −1, 0 or 1; the gradient is 0 everywhere. Throws DTypeError for booleans.
Tensor sign(TensorArg x);
// Returns ⌊x⌋, the largest integer that is at most x, for a floating x; the gradient is 0 everywhere.
Tensor floor(TensorArg x);
// Returns √x. This op and the unary ops up to gelu_tanh_slope() throw DTypeError unless x is floating.
Tensor sqrt(TensorArg x);
// Returns 1/√x, for a floating x.
Tensor rsqrt(TensorArg x);
// Returns eˣ, for a floating x.
Tensor exp(TensorArg x);
// Returns the natural logarithm of x, for a floating x.
Tensor log(TensorArg x);
// Returns sin x, in radians, for a floating x.
Tensor sin(TensorArg x);
// Returns cos x, in radians, for a floating x.
Tensor cos(TensorArg x);
// Returns the hyperbolic tangent of x, for a floating x.
Tensor tanh(TensorArg x);
// Returns the error function 2/√π·∫₀ˣ exp(−t²) dt, for a floating x.
Tensor erf(TensorArg x);
// Returns σ(x) = 1/(1 + e⁻ˣ), for a floating x.
Tensor sigmoid(TensorArg x);
// Returns max(x, 0), for a floating x; the gradient at 0 is 0.
Tensor relu(TensorArg x);
// Returns x·σ(x), for a floating x. Equals torch.nn.functional.silu.
Tensor silu(TensorArg x);
// Returns x·Φ(x) = x/2·(1 + erf(x/√2)), for a floating x. Equals torch.nn.functional.gelu.
Tensor gelu(TensorArg x);
// Returns x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))), for a floating x. Equals torch.nn.functional.gelu with
// approximate='tanh'.
Tensor gelu_tanh(TensorArg x);
// Returns the derivative of silu at x, for a floating x.
Tensor silu_slope(TensorArg x);
// Returns the derivative of gelu at x, for a floating x.
Tensor gelu_slope(TensorArg x);
// Returns the derivative of gelu_tanh at x, for a floating x.
Tensor gelu_tanh_slope(TensorArg x);
// Limits each element to [low, high]; NaN stays NaN. The gradient is 1 inside the interval and 0 outside.
// Throws Error unless low ≤ high, and DTypeError if the dtype of x cannot hold a bound.
Tensor clamp(TensorArg x, double low, double high);
// Returns a where `condition` is true, otherwise b; all three are broadcast. If a and b are both numbers, the
// result is f32. Throws DTypeError unless `condition` is boolean. Equals torch.where.
Tensor where(TensorArg condition, TensorArg a, TensorArg b);
// Returns a = b as booleans, for any dtypes. Comparisons and logical ops have no gradient.
Tensor equal(TensorArg a, TensorArg b);
// Returns a ≠ b as booleans.
Tensor not_equal(TensorArg a, TensorArg b);
// Returns a < b as booleans.
Tensor less(TensorArg a, TensorArg b);
// Returns a ≤ b as booleans.
Tensor less_equal(TensorArg a, TensorArg b);
// Returns a > b as booleans.
Tensor greater(TensorArg a, TensorArg b);
// Returns a ≥ b as booleans.
Tensor greater_equal(TensorArg a, TensorArg b);
// Returns whether a and b are both nonzero, as booleans.
Tensor logical_and(TensorArg a, TensorArg b);
// Returns whether a or b is nonzero, as booleans.
Tensor logical_or(TensorArg a, TensorArg b);
// Returns whether x is zero, as booleans.
Tensor logical_not(TensorArg x);

// Same as add(a, b).
inline Tensor operator+(TensorArg a, TensorArg b) {
  return add(a, b);
}
// Same as sub(a, b).
inline Tensor operator-(TensorArg a, TensorArg b) {
  return sub(a, b);
}
// Same as mul(a, b).
inline Tensor operator*(TensorArg a, TensorArg b) {
  return mul(a, b);
}
// Same as div(a, b).
inline Tensor operator/(TensorArg a, TensorArg b) {
  return div(a, b);
}
// Same as neg(x).
inline Tensor operator-(TensorArg x) {
  return neg(x);
}

// Converts x to `dtype`, or returns x itself if it has that dtype. Floating results are rounded to nearest
// even. Integer results are truncated towards zero, and a boolean result is x ≠ 0. Defined in copy.cpp, as
// are the next three.
Tensor cast(TensorArg x, DType dtype);
// Copies x to separate memory. A layout without gaps is kept; otherwise the copy is row-major.
Tensor copy(TensorArg x);
// Returns x itself if it is row-major, otherwise a row-major copy.
Tensor contiguous(TensorArg x);
// Returns a view of x through which no gradient passes, like torch.Tensor.detach.
Tensor stop_gradient(TensorArg x);

// Reorders the axes: axis i of the result is axis order[i] of x. This op and the ops up to unsqueeze() return
// views, which share the memory of x [Stratos, FlashAttention §B.3]; only reshape() may copy. Defined in
// view.cpp and slice.cpp; Tensor has the same functions as methods. Throws ShapeError unless `order` lists
// every axis once.
Tensor permute(TensorArg x, const Axes& order);
// Swaps the axes a and b. Throws ShapeError for an axis out of range.
Tensor transpose(TensorArg x, std::int64_t a, std::int64_t b);
// Returns a view of x with a different shape, and with the same elements in the same order. One size may be
// −1; it is then inferred. Throws ShapeError if the strides of x would require a copy.
Tensor view(TensorArg x, const Shape& shape);
// Same as view(), but copies x if its strides do not allow a view.
Tensor reshape(TensorArg x, const Shape& shape);
// Broadcasts x to `shape`: axes of size 1 are repeated with stride 0, and new axes come first. A size of −1
// keeps the size of x. Throws ShapeError if x does not broadcast to `shape`.
Tensor expand(TensorArg x, const Shape& shape);
// Returns the elements start, start + step, … before `stop` along `axis`. A negative `start` or `stop` counts
// from the end of the axis. Both are clipped to the axis. Throws ShapeError if `step` is below 1.
Tensor slice(TensorArg x, std::int64_t axis, std::int64_t start, std::int64_t stop, std::int64_t step = 1);
// Removes an axis of size 1. Throws ShapeError if the axis has a different size.
Tensor squeeze(TensorArg x, std::int64_t axis);
// Inserts a new axis of size 1 at index `axis` of the result.
Tensor unsqueeze(TensorArg x, std::int64_t axis);

// Returns a copy of x with `src` written at start, start + step, … along `axis`. src has the dtype of x.
// Except along `axis`, it also has the shape of x. A negative start counts from the end of the axis; `step`
// is at least 1. Throws ShapeError if the region does not fit into x. Equals torch.slice_scatter. Defined in
// slice.cpp.
Tensor slice_assign(TensorArg x, TensorArg src, std::int64_t axis, std::int64_t start, std::int64_t step = 1);
// Returns a copy of x with `src` written at start, start + 1, … along `axis`. `start` is an i64 or i32 tensor
// with one element, and its value may change from run to run. If the region does not fit into x, the run
// fails with an Error.
Tensor slice_assign(TensorArg x, TensorArg src, std::int64_t axis, TensorArg start);
// Copies `length` elements along `axis`, beginning at index `start`. `start` is an i64 or i32 tensor with one
// element, and its value may change from run to run. Throws ShapeError unless `length` is 0 to the size of
// the axis. If the region does not fit into x, the run fails with an Error.
Tensor slice_at(TensorArg x, std::int64_t axis, TensorArg start, std::int64_t length);

// Splits an axis into views of the given sizes. Throws ShapeError unless the sizes add up to the size of the
// axis. Defined in concat.cpp, as are the functions up to pad().
std::vector<Tensor> split(TensorArg x, const std::vector<std::int64_t>& sizes, std::int64_t axis = 0);
// Splits an axis into views of ⌈size / n⌉ elements, as torch.chunk does. The last view may be smaller, and
// the number of views may be less than n. Throws ShapeError if n is below 1, or for more than 2^20 views.
std::vector<Tensor> chunk(TensorArg x, std::int64_t n, std::int64_t axis = 0);
// Returns every slice along `axis` as a view without that axis. Throws ShapeError for more than 2^20 views.
std::vector<Tensor> unbind(TensorArg x, std::int64_t axis = 0);
// Joins tensors along an axis, by copying. Dtypes are promoted to one. Throws ShapeError if shapes differ
// along another axis, and Error for an empty list.
Tensor concat(const std::vector<Tensor>& parts, std::int64_t axis = 0, Where where = Where::current());
// Joins tensors of one shape along a new axis, by copying. Throws ShapeError if shapes differ, and Error for
// an empty list.
Tensor stack(const std::vector<Tensor>& parts, std::int64_t axis = 0, Where where = Where::current());
// Pads each axis a of x with before[a] elements at the beginning and after[a] elements at the end, all with
// the given value. Throws ShapeError unless both lists have one number per axis, at least 0.
Tensor pad(TensorArg x, const Dims& before, const Dims& after, double value = 0);

// Selects rows of a table: weight [V, C], indices [...] → [..., C], like torch.nn.functional.embedding.
// Indices of all index ops are i64 or i32 and at least 0; an index out of range fails the run with an Error.
// Defined in index.cpp, as are the next two.
Tensor embedding(TensorArg weight, TensorArg indices);
// Selects slices of x along `axis`. In the result, the axes of `indices` replace this axis. `indices` may
// have any rank.
Tensor index_select(TensorArg x, std::int64_t axis, TensorArg indices);
// Returns x with the slices of `src` added at `indices` along `axis`. If an index is repeated, all its slices
// are added. src has the dtype of x and the shape of index_select(x, axis, indices). With the unit roundoff u
// of the compute type, the error of a floating sum is at most (2¹² + 1)·u·Σ|x|. Throws DTypeError for
// booleans.
Tensor index_add(TensorArg x, std::int64_t axis, TensorArg indices, TensorArg src);

// Returns x with the slices of `src` written at `indices` along `axis`. Index −1 skips a slice. If indices
// repeat, the last one is used. src has the dtype of x and the shape of index_select(x, axis, indices).
// Defined in index_assign.cpp.
Tensor index_assign(TensorArg x, std::int64_t axis, TensorArg indices, TensorArg src);
// Same as index_assign() for several tensors of one dtype with the same indices, in one step. Throws
// ShapeError unless `xs` and `srcs` have the same length, at least 1.
std::vector<Tensor> index_assign_each(const std::vector<Tensor>& xs, std::int64_t axis, TensorArg indices,
                                      const std::vector<Tensor>& srcs);

// Selects one element per index, like torch.gather. For axis 1, `y[a, b, c] = x[a, indices[a, b, c], c]`. The
// result has the shape of `indices`. Indices have the rank of x, and along the other axes they are not larger
// than x. Defined in gather.cpp, as are the next two.
Tensor gather(TensorArg x, std::int64_t axis, TensorArg indices);
// Returns x with the elements of `src` added at the positions that gather() would read, like
// torch.scatter_add. src has the dtype of x. Along each axis, it is at least as large as `indices`. Elements
// beyond the shape of `indices` are ignored. Floats are added in f64 on the CPU. On a GPU, the error bound of
// index_add() applies. Throws DTypeError for booleans.
Tensor scatter_add(TensorArg x, std::int64_t axis, TensorArg indices, TensorArg src);
// Encodes indices [...] as [..., n], with 1 at the index and 0 elsewhere. The result is stored in memory. To
// count indices or to sum by index, index_add() is better. Throws ShapeError if n is negative.
Tensor one_hot(TensorArg indices, std::int64_t n, DType dtype = i64);

// Returns {values, indices} of the k largest elements along `axis`, in descending order; indices are i64. NaN
// counts as largest. Among equal elements, the lower index is first. Throws ShapeError unless k is 0 to the
// size of the axis. Defined in top_k.cpp.
std::vector<Tensor> top_k(TensorArg x, std::int64_t k, std::int64_t axis = -1);

// Draws one token per row from softmax(logits / temperature): logits [B, V] → tokens [B] (i32). `keys` is i64
// [B, 2]. A row contains {seed, k} for token k of a sequence. A token depends only on its row and is the same
// on every backend. `temperature`, `top_k` (0 keeps all) and `top_p` (1 keeps all) are numbers, or tensors
// [B] with one value per row. `top_k` is i64 or i32; the others are floating. nn::Sampling
// (nn/generation/sampling.h) defines their meaning, and nn::sample_token returns the same tokens for the same
// logits. If all logits of a row are NaN, the token is −1. Defined in sample.cpp.
Tensor sample(TensorArg logits, TensorArg temperature, TensorArg keys, TensorArg top_k = {},
              TensorArg top_p = {});

// Returns the running sum along `axis`: yᵢ = Σ xⱼ over j ≤ i, or over j ≥ i if `reverse` is set. Floats are
// added in f64 and rounded once to the dtype of x. Throws DTypeError for booleans. Equals torch.cumsum.
// Defined in cumsum.cpp.
Tensor cumsum(TensorArg x, std::int64_t axis, bool reverse = false);

// Returns start, start + step, … before `stop`, with shape [count]. Throws ShapeError if `step` is 0 or leads
// away from `stop`. Throws DTypeError for booleans, for fractions in an integer dtype, or if the dtype cannot
// represent a value. Defined in arange.cpp, as are the next three.
Tensor arange(Graph& graph, double start, double stop, double step = 1, DType dtype = i64,
              Where where = Where::current());
// Returns x with zeros above the given diagonal of its last two axes, like torch.tril. Throws ShapeError
// below rank 2.
Tensor tril(TensorArg x, std::int64_t diagonal = 0);
// Returns x with zeros below the given diagonal of its last two axes, like torch.triu. Throws ShapeError
// below rank 2.
Tensor triu(TensorArg x, std::int64_t diagonal = 0);
// Returns a copy of x with the axis reversed.
Tensor flip(TensorArg x, std::int64_t axis);

// Returns zeros with the shape and dtype of x. Defined in full.cpp; full() itself is in core/graph/graph.h.
Tensor zeros_like(TensorArg x);
// Returns ones with the shape and dtype of x.
Tensor ones_like(TensorArg x);
// Returns `value` in the shape and dtype of x. Throws DTypeError if the dtype cannot hold it.
Tensor full_like(TensorArg x, double value);

// Sums over the given axes, or over all axes if none are given. `keepdim` keeps reduced axes with size 1.
// Integers and booleans give i64; 16-bit floats accumulate in f32. The result does not depend on the number
// of threads. The error bound is (n/min(r, 256) + 2¹⁰)·u·Σ|x|. Here n is the number of elements, in runs of r
// elements with one stride, and u is the unit roundoff of the compute type. Defined in reduce.cpp, as are all
// reductions up to sum_to(); all have these axes and `keepdim`.
Tensor sum(TensorArg x, const Axes& axes = {}, bool keepdim = false);
// Multiplies over the axes. Integers and booleans give i64. The gradient is correct even if elements are
// zero.
Tensor prod(TensorArg x, const Axes& axes = {}, bool keepdim = false);
// Averages over the axes. Throws DTypeError unless x is floating.
Tensor mean(TensorArg x, const Axes& axes = {}, bool keepdim = false);
// Returns Σ x² over the axes, in f32 for bf16 and f16. Throws DTypeError unless x is floating.
Tensor sum_squares(TensorArg x, const Axes& axes = {}, bool keepdim = false);
// Returns the largest element over the axes, or NaN if there is a NaN. If several elements are largest, each
// gets an equal share of the gradient, as in torch.amax. Throws ShapeError if a reduced axis has size 0.
Tensor max(TensorArg x, const Axes& axes = {}, bool keepdim = false);
// Returns the smallest element over the axes, or NaN if there is a NaN. If several elements are smallest,
// each gets an equal share of the gradient, as in torch.amin. Throws ShapeError if a reduced axis has size 0.
Tensor min(TensorArg x, const Axes& axes = {}, bool keepdim = false);
// Returns the variance Σ(x − mean)² / (n − correction) over the axes, in the dtype of x, like torch.var.
// Throws Error unless `correction` is finite, and DTypeError unless x is floating.
Tensor var(TensorArg x, const Axes& axes = {}, bool keepdim = false, double correction = 1);
// Returns the i64 index of the first largest element, counted in row-major order within the reduced axes. NaN
// counts as largest. Throws ShapeError if a reduced axis has size 0.
Tensor argmax(TensorArg x, const Axes& axes = {}, bool keepdim = false);
// Returns the i64 index of the first smallest element, counted in row-major order within the reduced axes.
// NaN counts as smallest. Throws ShapeError if a reduced axis has size 0.
Tensor argmin(TensorArg x, const Axes& axes = {}, bool keepdim = false);
// Returns whether any element over the axes is nonzero, as booleans.
Tensor any(TensorArg x, const Axes& axes = {}, bool keepdim = false);
// Returns whether all elements over the axes are nonzero, as booleans.
Tensor all(TensorArg x, const Axes& axes = {}, bool keepdim = false);
// Sums x to `shape`. The reduced axes are the axes that broadcasting from `shape` would repeat. This op is
// the gradient of expand(). Throws ShapeError unless `shape` broadcasts to the shape of x.
Tensor sum_to(TensorArg x, const Shape& shape);

// Returns exp(x − ξ) with ξ = log Σ exp x along `axis`. If all elements of a row are −∞, the result is NaN,
// as in torch.softmax; flash_attn() returns 0 for such rows. Throws DTypeError unless x is floating. Defined
// in softmax.cpp, as are the next two.
Tensor softmax(TensorArg x, std::int64_t axis = -1);
// Returns x − ξ with ξ = log Σ exp x along `axis`. If all elements of a row are −∞, the result is NaN, as in
// torch.log_softmax.
Tensor log_softmax(TensorArg x, std::int64_t axis = -1);
// Returns ξ = log Σ exp x over the axes, or over all axes if none are given. If all elements are −∞, ξ is −∞.
// Throws DTypeError unless x is floating.
Tensor logsumexp(TensorArg x, const Axes& axes = {}, bool keepdim = false);

// Normalizes the last axis: (x − μ)/√(σ² + eps) ⊛ weight + bias, with mean μ and variance σ², like
// torch.nn.functional.layer_norm. x [..., n]; weight and bias [n] may be absent. Statistics are in f32, or
// f64 for f64. Throws Error for a bias without a weight and for an `eps` below 0. Throws DTypeError if a
// weight is f64 but x is not. Defined in norm.cpp.
Tensor layer_norm(TensorArg x, TensorArg weight = {}, TensorArg bias = {}, double eps = 1e-5);
// Normalizes the last axis by its root mean square: x/√(mean(x²) + eps) ⊛ weight, like
// torch.nn.functional.rms_norm. Shapes and errors as in layer_norm().
Tensor rms_norm(TensorArg x, TensorArg weight = {}, double eps = 1e-6);

// How a loss combines its rows.
enum class Reduction {
  mean,  // average over the rows that are not ignored
  sum,   // sum over the rows
  none   // one loss per row
};
// Options of cross_entropy().
struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;       // rows with this target have loss and gradient 0
  Reduction reduction = Reduction::mean;  // mean: over targets that are not ignored
  double label_smoothing = 0;             // ε in [0, 1]: probability spread evenly over all classes
};
// Computes the cross-entropy of logits [..., V] and class indices targets [...] (i64 or i32), like
// torch.nn.functional.cross_entropy. The loss is f32, or f64 for f64 logits. If a target is outside 0 … V − 1
// and not `ignore_index`, the run fails with an Error. If all targets are ignored, the mean is 0; in PyTorch
// it is NaN. Throws Error if label_smoothing is not in [0, 1]. Defined in cross_entropy.cpp.
Tensor cross_entropy(TensorArg logits, TensorArg targets, const CrossEntropyOptions& options = {});

// Options of `rope()`.
struct RopeOptions {
  double theta = 10000;      // pair i of n pairs is rotated by position·theta^(−i/n)
  std::int64_t dims = 0;     // only the first `dims` elements of a row are rotated; even; 0: all
  bool interleaved = false;  // pairs (2i, 2i + 1), as in the paper; otherwise (i, i + n), as in Llama
  std::int64_t start = 0;    // position of the first row if rope() gets no positions
  std::vector<double> frequencies = {};  // one per pair, in radians per position; replaces theta and dims
};
// Applies the rotary position embedding (RoFormer, arXiv 2104.09864) to rows of x [..., L, d]: pair (a, b)
// becomes (a·cos φ − b·sin φ, a·sin φ + b·cos φ), with φ = position·frequency. Positions are i64 or i32
// values that broadcast to [..., L]. Without positions, they are start, start + 1, … along L. Throws
// ShapeError if the rotated size is odd or larger than d, or if `start` is beyond ±2^53. Defined in rope.cpp.
Tensor rope(TensorArg x, TensorArg positions = {}, const RopeOptions& options = {});
// Returns theta^(−2i/dims) for each pair i, in radians per position. Throws ShapeError unless `dims` is 0 to
// 2^20, and Error unless theta is positive.
std::vector<double> rope_frequencies(std::int64_t dims, double theta);

// Returns silu(gate) ⊛ value. Defined in pointwise.cpp.
Tensor swiglu(TensorArg gate, TensorArg value);
// Same with both operands in one tensor [..., 2n], the gates first. The result is [..., n]. Throws ShapeError
// if the last axis is odd.
Tensor swiglu(TensorArg packed);

// Sets each element to zero with probability p and scales the others by 1/(1 − p). If `training` is false,
// returns x. p is in [0, 1]; its error is at most 2^-32. Random numbers are functions of the program's seed
// and the run number, defined in core/base/rng.h and core/base/random.h. They are the same on every backend
// and new in each run. Defined in random.cpp, as are the next four.
Tensor dropout(TensorArg x, double p, bool training = true);
// Returns uniform random numbers in [low, high), of a floating dtype. If a rounded number would be outside of
// the interval, the nearest number inside is returned. Throws Error if a bound is not finite or the dtype has
// no number in the interval.
Tensor uniform(Graph& graph, const Shape& shape, double low = 0, double high = 1, DType dtype = f32,
               Where where = Where::current());
// Returns normally distributed random numbers, of a floating dtype. They are finite if the dtype can
// represent mean ± 6.77·std. Throws Error for a negative `std`.
Tensor normal(Graph& graph, const Shape& shape, double mean = 0, double std = 1, DType dtype = f32,
              Where where = Where::current());
// Returns booleans that are true with probability p. The error of the probability is at most 2^-32, and 0 if
// p is 0 or 1. Throws Error unless p is in [0, 1].
Tensor bernoulli(Graph& graph, const Shape& shape, double p, Where where = Where::current());
// Returns uniform random integers in [low, high), of an integer dtype. Throws Error unless low < high within
// ±2^53, and DTypeError if the dtype cannot hold a value.
Tensor randint(Graph& graph, const Shape& shape, std::int64_t low, std::int64_t high, DType dtype = i64,
               Where where = Where::current());

// Options of adamw(); the defaults are those of torch.optim.AdamW.
struct AdamWOptions {
  double beta1 = 0.9;          // decay rate of the first moment m, in [0, 1)
  double beta2 = 0.999;        // decay rate of the second moment v, in [0, 1)
  double eps = 1e-8;           // added to the denominator; at least the smallest normal f32
  double weight_decay = 0.01;  // decoupled weight decay λ, at least 0

  // Throws Error if an option is out of range; `who` names the caller in the message.
  void check(std::string_view who) const;
};
// Computes one AdamW step (Loshchilov and Hutter, 2019; torch.optim.AdamW) and returns {p', m', v'}, which
// the caller assigns to the parameters. p, g, m and v have one shape and floating dtypes. The gradient is
// scale·g; `step` counts from 1. A `scale` of 0 skips the step: p, m and v are returned unchanged.
// `learning_rate`, `step` and `scale` are numbers or tensors of one element. Not differentiable. Defined in
// adamw.cpp.
std::array<Tensor, 3> adamw(TensorArg p, TensorArg g, TensorArg m, TensorArg v, TensorArg learning_rate,
                            TensorArg step, TensorArg scale = 1, const AdamWOptions& options = {});
// One parameter of an adamw() call on a list.
struct AdamWTensors {
  Tensor p;                        // parameter
  Tensor g;                        // its gradient, of the shape of p
  Tensor m, v;                     // first and second moment, of the shape of p
  double weight_decay = 0;         // decoupled weight decay of this parameter
  std::optional<DType> copy = {};  // dtype of a low-precision copy of p': bf16 or f16
};
// The results for one parameter of an adamw() call on a list.
struct AdamWResults {
  Tensor p;     // updated parameter, in the dtype of AdamWTensors::p
  Tensor m, v;  // updated moments, in the dtypes of the inputs
  Tensor copy;  // p' in the dtype AdamWTensors::copy; undefined if that is not set
};
// Same for a list of parameters, in one step of the program. Each entry has its own weight decay, and
// options.weight_decay is ignored. Throws Error for an empty list.
std::vector<AdamWResults> adamw(const std::vector<AdamWTensors>& all, TensorArg learning_rate, TensorArg step,
                                TensorArg scale = 1, const AdamWOptions& options = {});

// Returns Σ x² over all elements of all tensors, which may differ in shape and floating dtype. The result is
// a scalar, f64 if a tensor is f64, otherwise f32. Throws Error for an empty list. Defined in
// squared_norm.cpp, as are the next two.
Tensor squared_norm(const std::vector<Tensor>& xs, Where where = Where::current());
// Returns √Σ x² over all elements of all tensors. The result is correct even if its dtype cannot represent Σ
// x². Shapes, dtypes and errors as in squared_norm(). Equals torch.nn.utils.get_total_norm.
Tensor global_norm(const std::vector<Tensor>& xs, Where where = Where::current());
// Returns √Σ x² for each block of `norm_block` consecutive elements of each x, in row-major order. The last
// block may be shorter. A tensor of n elements gives [⌈n/norm_block⌉], f64 for f64, otherwise f32. Not
// differentiable.
std::vector<Tensor> block_norms(const std::vector<Tensor>& xs, Where where = Where::current());

// Multiplies matrices over the last two axes: a [..., m, k], b [..., k, n] → [..., m, n], like torch.matmul.
// Leading axes broadcast. A vector a is treated as a row and a vector b as a column; the result then lacks
// this axis. Operands with any strides are read in place. The result is row-major. On the CPU, sums over k
// are computed in chunks, and the error is at most (k/384 + 4096)·u·Σ|a·b|, where u is the unit roundoff of
// the compute type. On a GPU, libraries determine the order of additions. Throws DTypeError unless the
// operands are floating, and ShapeError if the inner sizes differ. Defined in matmul.cpp.
Tensor matmul(TensorArg a, TensorArg b);
// Same as matmul(), but the result is not rounded to a 16-bit dtype: it is f32 for bf16 and f16.
Tensor matmul_wide(TensorArg a, TensorArg b);
// Returns x·w + bias: x [..., in], w [in, out], bias [out] or absent. w is the transpose of the weight of
// torch.nn.functional.linear.
Tensor linear(TensorArg x, TensorArg w, TensorArg bias = {});

// Returns booleans of `shape` [B, H, L, T]. They are true for elements of the attention weights that dropout
// keeps. They are computed from the counters of core/base/rng.h. `rng` is Graph::rng(), and `stream` is the
// number of the random node. flash_attn() itself is in flash_attn.h.
Tensor attention_keep_mask(TensorArg rng, const Shape& shape, double dropout, std::int64_t stream);

// Definitions of ops. Use them to find nodes in a graph, or to record an op with other attributes.
extern const Op &add_op, &sub_op, &contiguous_op, &index_assign_op, &concat_op, &matmul_op, &dropout_op,
    &rope_op, &adamw_op, &flash_attn_op, &flash_attn_backward_op;

// Returns all built-in ops and all ops that were registered so far. Any thread may call this at any time.
std::vector<const Op*> all_ops();
// Returns the built-in or registered op with that name, or null. Any thread may call this at any time.
const Op* find_op(std::string_view name);
// Registers a user-defined op, which gradcheck and the tests then cover like a built-in op. Throws Error if
// the name is empty or in use, or if the op has no shape rule. Any thread may call this at any time.
const Op& register_op(Op op);

}  // namespace tg
