// Layout: where a tensor's elements lie in its buffer [Stratos, FlashAttention §B.2-B.3]. A plain value:
// every function returns another layout over the same buffer, copies no elements, and throws ShapeError if
// there is no such layout.
#pragma once

#include <tilegrad/core/base/dims.h>

namespace tg {

// Element (i, j, …) lies at offset + i·strides[0] + j·strides[1] + …, counted in elements.
struct Layout {
  Shape shape;
  Strides strides;
  std::int64_t offset = 0;

  int rank() const { return shape.size(); }
  std::int64_t numel() const;
  // Row-major without gaps: s_m = 1 and s_i = d_{i+1}·s_{i+1}; axes of size 1 may have any stride.
  bool is_contiguous() const;
  bool is_dense() const;        // no gaps and no two elements at the same index, with the axes in any order
  std::int64_t extent() const;  // elements of buffer it spans: largest index + 1; 0 when empty
  friend bool operator==(const Layout&, const Layout&) = default;
};

// The most elements that a shape can have: far more than any memory, yet their number is exact as a double,
// and their bytes, or those of a kernel's scratch of 100 bytes per element, are a 64-bit number. So nothing
// that takes a Shape or a Layout needs to check a product of its sizes again.
inline constexpr std::int64_t max_elements = std::int64_t{1} << 53;
// Throws ShapeError for negative sizes and for more than max_elements, where an axis of size 0 counts as 1:
// strides are products of the other sizes.
std::int64_t numel(const Shape& shape);
// The sum of two sizes; throws ShapeError if it is above max_elements.
std::int64_t add_sizes(std::int64_t a, std::int64_t b);
Strides row_major_strides(const Shape& shape);
Layout row_major(const Shape& shape);
// A gap-free layout of this shape whose axes lie in memory in the same order as in `like` (same rank).
Layout dense_like(const Shape& shape, const Layout& like);

// The axis as a number in 0 … rank-1; a negative one counts from the end. Here and below `what` is the name
// of the function or op that the error begins with.
int normalize_axis(std::int64_t axis, int rank, const char* what);
// The axes, normalised, sorted and distinct; an empty list means all of them.
Axes normalize_axes(const Axes& axes, int rank, const char* what);
// NumPy's broadcasting rule: shapes are aligned at the last axis, and sizes of 1 are stretched [Stratos,
// Efficient Attention §A].
Shape broadcast_shapes(const Shape& a, const Shape& b, const char* what);

Layout permute(const Layout&, const Axes& order);  // axis i of the result is axis order[i]
Layout transpose(const Layout&, std::int64_t a, std::int64_t b);
// The same elements, in the same order, with another shape; one size may be -1. An axis can be split, and
// adjacent axes can be merged if the outer stride is the inner size times the inner stride. Otherwise throws;
// the error suggests reshape(), which copies.
Layout view(const Layout&, const Shape& shape);
bool can_view(const Layout&, const Shape& shape);
// Sizes of 1 are stretched (stride 0), new axes come first, and a size of -1 keeps the axis as it is.
Layout expand(const Layout&, const Shape& shape);
// Elements start, start + step, … before stop; negative ends count from the end, both are clipped to the
// axis.
Layout slice(const Layout&, std::int64_t axis, std::int64_t start, std::int64_t stop, std::int64_t step = 1);
Layout squeeze(const Layout&, std::int64_t axis);
Layout unsqueeze(const Layout&, std::int64_t axis);
// The shape, with its one -1 replaced, if it has one, so that it has n elements; throws ShapeError if it
// cannot.
Shape infer_shape(const Shape& shape, std::int64_t n, const char* what);

namespace detail {
// The indices of element i, in row-major order, of a tensor of this shape.
Dims index_of(const Shape& shape, std::int64_t i);
}  // namespace detail

}  // namespace tg
