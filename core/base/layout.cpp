#include <tilegrad/core/base/layout.h>

#include <limits>

namespace tg {

std::int64_t numel(const Shape& shape) {
  std::int64_t n = 1, span = 1;
  for (std::int64_t d : shape) {
    if (d < 0) throw ShapeError("[tensor] negative size in shape " + shape.text());
    if (__builtin_mul_overflow(span, std::max<std::int64_t>(d, 1), &span) || span > max_elements)
      throw ShapeError("[tensor] shape " + shape.text() + " has too many elements: more than 2^53");
    n *= d;
  }
  return n;
}

Dims detail::index_of(const Shape& shape, std::int64_t i) {
  Dims index = shape;
  for (int a = shape.size() - 1; a >= 0; --a) {
    index[a] = i % shape[a];
    i /= shape[a];
  }
  return index;
}

std::int64_t add_sizes(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum) || sum > max_elements)
    throw ShapeError("sizes " + std::to_string(a) + " and " + std::to_string(b) +
                     " add up to more than 2^53");
  return sum;
}

std::int64_t Layout::numel() const {
  return tg::numel(shape);
}

Strides row_major_strides(const Shape& shape) {
  numel(shape);  // refuses negative and overflowing sizes
  Strides s = Dims::filled(shape.size(), 1);
  for (int i = shape.size() - 2; i >= 0; --i) s[i] = s[i + 1] * std::max<std::int64_t>(shape[i + 1], 1);
  return s;
}

Layout row_major(const Shape& shape) {
  return {shape, row_major_strides(shape), 0};
}

bool Layout::is_contiguous() const {
  std::int64_t expected = 1;
  if (numel() == 0) return true;
  for (int i = rank() - 1; i >= 0; --i) {
    if (shape[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

namespace {

// Axes from the outermost in memory to the innermost; equal strides keep their order.
Axes memory_order(const Layout& l) {
  Axes order;
  for (int a = 0; a < l.rank(); ++a) order.push_back(a);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return l.strides[a] > l.strides[b]; });
  return order;
}

}  // namespace

bool Layout::is_dense() const {
  if (numel() == 0) return true;
  std::int64_t expected = 1;
  const Axes order = memory_order(*this);
  for (int i = rank() - 1; i >= 0; --i) {
    const int a = static_cast<int>(order[i]);
    if (shape[a] == 1) continue;
    if (strides[a] != expected) return false;
    expected *= shape[a];
  }
  return true;
}

std::int64_t Layout::extent() const {
  if (numel() == 0) return 0;
  std::int64_t last = offset;
  for (int i = 0; i < rank(); ++i) {
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(shape[i] - 1, strides[i], &reach) ||
        __builtin_add_overflow(last, reach, &last) || last == std::numeric_limits<std::int64_t>::max())
      throw ShapeError("[tensor] shape " + shape.text() + " with strides " + strides.text() +
                       " reaches beyond any memory");
  }
  return last + 1;
}

namespace {

// Checks a layout. Products of strides and sizes then do not overflow in the functions below.
void check(const Layout& l) {
  const auto refuse = [&] {
    return ShapeError("[tensor] shape " + l.shape.text() + ", strides " + l.strides.text() + " and offset " +
                      std::to_string(l.offset) + " do not form a valid layout");
  };
  numel(l.shape);
  if (l.strides.size() != l.rank() || l.offset < 0 || l.offset > max_elements) throw refuse();
  for (int i = 0; i < l.rank(); ++i) {
    std::int64_t reach = 0;
    if (l.strides[i] < 0 || __builtin_mul_overflow(l.shape[i], l.strides[i], &reach) ||
        reach > (std::int64_t{1} << 60))
      throw refuse();
  }
}

}  // namespace

Layout dense_like(const Shape& shape, const Layout& like) {
  if (shape.size() != like.rank() || like.is_contiguous()) return row_major(shape);
  Layout out = row_major(shape);  // with other strides
  std::int64_t step = 1;
  const Axes order = memory_order(like);
  for (int i = shape.size() - 1; i >= 0; --i) {
    const int a = static_cast<int>(order[i]);
    out.strides[a] = step;
    step *= std::max<std::int64_t>(shape[a], 1);
  }
  return out;
}

int normalize_axis(std::int64_t axis, int rank, const char* what) {
  const std::int64_t a = axis < 0 ? axis + rank : axis;
  if (a < 0 || a >= rank)
    throw ShapeError(std::string("[") + what + "] axis " + std::to_string(axis) + " is out of range for " +
                     std::to_string(rank) + " dimensions");
  return static_cast<int>(a);
}

Axes normalize_axes(const Axes& axes, int rank, const char* what) {
  Axes out;
  if (axes.empty())
    for (int i = 0; i < rank; ++i) out.push_back(i);
  for (std::int64_t a : axes) {
    const int n = normalize_axis(a, rank, what);
    if (out.contains(n))
      throw ShapeError(std::string("[") + what + "] axis " + std::to_string(a) + " is given twice");
    out.push_back(n);
  }
  std::sort(out.begin(), out.end());
  return out;
}

Shape broadcast_shapes(const Shape& a, const Shape& b, const char* what) {
  const int rank = std::max(a.size(), b.size());
  Shape out = Dims::filled(rank, 1);
  for (int i = 1; i <= rank; ++i) {
    const std::int64_t x = i <= a.size() ? a[a.size() - i] : 1, y = i <= b.size() ? b[b.size() - i] : 1;
    if (x != y && x != 1 && y != 1)
      throw ShapeError(std::string("[") + what + "] shapes do not broadcast: " + a.text() + " with " +
                       b.text());
    out[rank - i] = x == 1 ? y : x;
  }
  return out;
}

Layout permute(const Layout& l, const Axes& order) {
  check(l);
  Layout out{{}, {}, l.offset};
  Axes seen;
  for (std::int64_t o : order) {
    const int a = normalize_axis(o, l.rank(), "permute");
    if (seen.contains(a)) throw ShapeError("[permute] axis " + std::to_string(o) + " is given twice");
    seen.push_back(a);
    out.shape.push_back(l.shape[a]);
    out.strides.push_back(l.strides[a]);
  }
  if (order.size() != l.rank())
    throw ShapeError("[permute] order " + order.text() + " does not list every axis of " + l.shape.text());
  return out;
}

Layout transpose(const Layout& l, std::int64_t a, std::int64_t b) {
  check(l);
  Layout out = l;
  const int i = normalize_axis(a, l.rank(), "transpose"), j = normalize_axis(b, l.rank(), "transpose");
  std::swap(out.shape[i], out.shape[j]);
  std::swap(out.strides[i], out.strides[j]);
  return out;
}

Shape infer_shape(const Shape& shape, std::int64_t n, const char* what) {
  Shape out = shape;
  int unknown = -1;
  for (int i = 0; i < shape.size(); ++i) {
    if (shape[i] != -1) continue;
    if (unknown >= 0)
      throw ShapeError(std::string("[") + what + "] more than one -1 in shape " + shape.text());
    unknown = i;
    out[i] = 1;
  }
  const std::int64_t known = numel(out);
  if (unknown >= 0) out[unknown] = known > 0 && n % known == 0 ? n / known : -1;
  if ((unknown >= 0 && out[unknown] == -1) || numel(out) != n)
    throw ShapeError(std::string("[") + what + "] shape " + shape.text() + " does not hold " +
                     std::to_string(n) + " elements");
  return out;
}

namespace {

// Finds strides for the new shape that keep the elements and their order. Returns false if there are none.
// First merges axes into runs, as long as one stride covers a run. The new sizes must then divide these runs.
bool view_strides(const Layout& l, const Shape& shape, Strides& out) {
  out = row_major_strides(shape);
  if (l.numel() == 0) return true;
  Shape run_size;
  Strides run_stride;
  for (int i = 0; i < l.rank(); ++i) {
    if (l.shape[i] == 1) continue;
    if (!run_size.empty() && run_stride.back() == l.shape[i] * l.strides[i]) {
      run_size[run_size.size() - 1] *= l.shape[i];
      run_stride[run_size.size() - 1] = l.strides[i];
    } else {
      run_size.push_back(l.shape[i]);
      run_stride.push_back(l.strides[i]);
    }
  }
  int r = run_size.size() - 1;
  std::int64_t inside = 1;  // number of elements of run r that the axes cover so far
  for (int i = shape.size() - 1; i >= 0; --i) {
    if (shape[i] == 1) {
      continue;  // any stride works; the row-major one is kept
    }
    if (r < 0 || run_size[r] % (inside * shape[i]) != 0) return false;
    out[i] = run_stride[r] * inside;
    inside *= shape[i];
    if (inside == run_size[r]) {
      --r;
      inside = 1;
    }
  }
  return r < 0;
}

}  // namespace

bool can_view(const Layout& l, const Shape& shape) {
  check(l);
  Strides s;
  return view_strides(l, infer_shape(shape, l.numel(), "view"), s);
}

Layout view(const Layout& l, const Shape& shape) {
  check(l);
  Layout out{infer_shape(shape, l.numel(), "view"), {}, l.offset};
  if (!view_strides(l, out.shape, out.strides))
    throw ShapeError("[view] shape " + l.shape.text() + " with strides " + l.strides.text() +
                     " cannot be viewed as " + out.shape.text() + " without a copy; reshape() makes one");
  return out;
}

Layout expand(const Layout& l, const Shape& shape) {
  check(l);
  Layout out{shape, Dims::filled(shape.size(), 0), l.offset};
  const int extra = shape.size() - l.rank();
  const auto refuse = [&] {
    return ShapeError("[expand] shape " + l.shape.text() + " cannot be expanded to " + shape.text());
  };
  if (extra < 0) throw refuse();
  for (int i = 0; i < shape.size(); ++i) {
    if (i < extra) {
      if (shape[i] < 0) throw refuse();
      continue;
    }
    const std::int64_t d = l.shape[i - extra];
    if (shape[i] == -1) out.shape[i] = d;
    if (out.shape[i] < 0 || (d != 1 && out.shape[i] != d)) throw refuse();
    if (d != 1 || out.shape[i] == 1) out.strides[i] = l.strides[i - extra];
  }
  numel(out.shape);
  return out;
}

Layout slice(const Layout& l, std::int64_t axis, std::int64_t start, std::int64_t stop, std::int64_t step) {
  check(l);
  const int a = normalize_axis(axis, l.rank(), "slice");
  const std::int64_t d = l.shape[a];
  if (step < 1) throw ShapeError("[slice] step is " + std::to_string(step) + ", expected 1 or more");
  const auto clip = [d](std::int64_t i) { return std::clamp<std::int64_t>(i < 0 ? i + d : i, 0, d); };
  Layout out = l;
  const std::int64_t first = clip(start), last = std::max(clip(stop), first);
  out.shape[a] = last == first ? 0 : (last - first - 1) / step + 1;
  out.offset += first * l.strides[a];
  // With fewer than two elements the stride is never used, so any step is valid.
  if (__builtin_mul_overflow(l.strides[a], step, &out.strides[a]) || out.strides[a] > max_elements)
    out.strides[a] = l.strides[a];
  return out;
}

Layout squeeze(const Layout& l, std::int64_t axis) {
  check(l);
  const int a = normalize_axis(axis, l.rank(), "squeeze");
  if (l.shape[a] != 1)
    throw ShapeError("[squeeze] axis " + std::to_string(axis) + " of " + l.shape.text() +
                     " has a size other than 1");
  Layout out = l;
  out.shape.erase(a);
  out.strides.erase(a);
  return out;
}

Layout unsqueeze(const Layout& l, std::int64_t axis) {
  check(l);
  const int a = normalize_axis(axis, l.rank() + 1, "unsqueeze");
  Layout out = l;
  out.strides.insert(a, a < l.rank() ? l.shape[a] * l.strides[a] : 1);
  out.shape.insert(a, 1);
  return out;
}

}  // namespace tg
