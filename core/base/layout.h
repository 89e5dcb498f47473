// Layout: how a tensor's elements are stored in its buffer [Stratos, FlashAttention §B.2-B.3]. A layout is a
// plain value. Each function returns a new layout of the same buffer, copies no elements, and throws
// ShapeError if no such layout exists.
#pragma once

#include <tilegrad/core/base/dims.h>

namespace tg {

// Shape, strides and offset. Element (i, j, …) is stored at offset + i·strides[0] + j·strides[1] + …, counted
// in elements.
struct Layout {
  Shape shape;              // sizes, outermost axis first
  Strides strides;          // one per axis
  std::int64_t offset = 0;  // index of element (0, 0, …)

  // Number of axes.
  int rank() const { return shape.size(); }
  // Number of elements.
  std::int64_t numel() const;
  // Whether it is row-major without gaps: s_m = 1 and s_i = d_{i+1}·s_{i+1}, for sizes d and strides s. Axes
  // of size 1 may have any stride.
  bool is_contiguous() const;
  // Whether it has no gaps and no two elements share a position. The axes may have any order in memory.
  bool is_dense() const;
  // Number of buffer elements that it spans: the largest position + 1, or 0 if it is empty.
  std::int64_t extent() const;
  // Whether shape, strides and offset are equal.
  friend bool operator==(const Layout&, const Layout&) = default;
};

// Maximum number of elements of a shape. It exceeds every memory, but it is exact as a double. The size in
// bytes fits into 64 bits, and so does the size of kernel scratch with 100 bytes per element. Functions of a
// Shape or Layout therefore need no further overflow checks.
inline constexpr std::int64_t max_elements = std::int64_t{1} << 53;
// Number of elements. Throws ShapeError for negative sizes and for more than max_elements. For this limit, an
// axis of size 0 counts as 1, because strides are products of the other sizes.
std::int64_t numel(const Shape& shape);
// The sum of two sizes. Throws ShapeError if it is above max_elements.
std::int64_t add_sizes(std::int64_t a, std::int64_t b);
// The strides of a row-major layout without gaps.
Strides row_major_strides(const Shape& shape);
// The row-major layout without gaps.
Layout row_major(const Shape& shape);
// A layout of this shape without gaps. The axes have the same order in memory as in `like`, which must have
// the same rank.
Layout dense_like(const Shape& shape, const Layout& like);

// The axis counted from the front, 0 … rank − 1; a negative axis counts from the end. Throws ShapeError for
// an axis out of range. Here and below, error messages begin with `what`, the name of a function or op.
int normalize_axis(std::int64_t axis, int rank, const char* what);
// Applies normalize_axis() to each axis and sorts the axes. An empty list means all axes. Throws ShapeError
// if an axis is listed twice.
Axes normalize_axes(const Axes& axes, int rank, const char* what);
// The shape of two broadcast operands, by NumPy's rule: shapes are aligned at the last axis, and sizes of 1
// are repeated [Stratos, Efficient Attention §A]. Throws ShapeError if the shapes do not broadcast.
Shape broadcast_shapes(const Shape& a, const Shape& b, const char* what);

// Reorders the axes: axis i of the result is axis order[i].
Layout permute(const Layout&, const Axes& order);
// Swaps two axes.
Layout transpose(const Layout&, std::int64_t a, std::int64_t b);
// Changes the shape; the elements and their order stay the same. One size may be −1; it is then inferred. An
// axis can be split. Adjacent axes can be merged if the outer stride is the inner size times the inner
// stride. In other cases, throws ShapeError with a message that suggests reshape().
Layout view(const Layout&, const Shape& shape);
// Whether view() to this shape is possible.
bool can_view(const Layout&, const Shape& shape);
// Repeats axes of size 1 with stride 0. New axes come first, and a size of −1 keeps the axis.
Layout expand(const Layout&, const Shape& shape);
// Selects the elements start, start + step, … before `stop` along an axis. A negative `start` or `stop`
// counts from the end of the axis. Both are clipped to the axis.
Layout slice(const Layout&, std::int64_t axis, std::int64_t start, std::int64_t stop, std::int64_t step = 1);
// Removes an axis of size 1.
Layout squeeze(const Layout&, std::int64_t axis);
// Inserts an axis of size 1 at index `axis` of the result.
Layout unsqueeze(const Layout&, std::int64_t axis);
// Returns the shape for n elements: a size of −1, if there is one, is replaced. Throws ShapeError if that is
// not possible.
Shape infer_shape(const Shape& shape, std::int64_t n, const char* what);

namespace detail {
// The indices of element i, in row-major order, of a tensor with this shape.
Dims index_of(const Shape& shape, std::int64_t i);
}  // namespace detail

}  // namespace tg
