// Layouts: how a tensor's elements lie in its buffer (004 §B.2-B.3). Pure values: every function returns a
// new layout over the same buffer, copies nothing, and throws ShapeError where there is no such layout.
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
  bool is_contiguous()
      const;  // row-major without gaps: s_m = 1 and s_i = d_{i+1}·s_{i+1}; axes of size 1 are free
  bool is_dense() const;        // every element its own place and no gaps, in some order of the axes
  std::int64_t extent() const;  // elements of buffer it reaches: largest index + 1, 0 when empty
  friend bool operator==(const Layout&, const Layout&) = default;
};

std::int64_t numel(const Shape& shape);
Strides row_major_strides(const Shape& shape);
Layout row_major(const Shape& shape);
// A gap-free layout of this shape whose axes lie in memory in the same order as in `like` (same rank).
Layout dense_like(const Shape& shape, const Layout& like);

// The axis as a number in 0 … rank-1; negative counts from the end. `what` names the function for the error.
int normalize_axis(std::int64_t axis, int rank, const char* what);
// The axes, normalised, sorted and distinct; an empty list means all of them.
Axes normalize_axes(const Axes& axes, int rank, const char* what);
// Numpy's broadcasting rule: dimensions aligned at the right, 1 stretches (000 §A).
Shape broadcast_shapes(const Shape& a, const Shape& b, const char* what);

Layout permute(const Layout&, const Axes& order);  // axis i of the result is axis order[i]
Layout transpose(const Layout&, std::int64_t a, std::int64_t b);
// The same elements, in the same order, under another shape; one size may be -1. Axes can be split, and
// merged where the outer one steps over the inner one whole. Otherwise throws, and says that `reshape` would
// copy.
Layout view(const Layout&, const Shape& shape);
bool can_view(const Layout&, const Shape& shape);
Layout expand(const Layout&,
              const Shape& shape);  // sizes of 1 stretch (stride 0), new axes come in front; -1 keeps
Layout slice(const Layout&, std::int64_t axis, std::int64_t start, std::int64_t stop, std::int64_t step = 1);
Layout squeeze(const Layout&, std::int64_t axis);
Layout unsqueeze(const Layout&, std::int64_t axis);
// shape with one -1 replaced so that it has n elements.
Shape infer_shape(const Shape& shape, std::int64_t n, const char* what);

}  // namespace tg
