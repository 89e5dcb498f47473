// Lists of axes that kernels iterate over. A list has sizes and strides, and adjacent axes are merged if
// possible. A counter iterates over all index tuples of a list.
#pragma once

#include <tilegrad/core/base/layout.h>
#include "backends/cpu/kernels/kernels.h"
#include "core/graph/op_attrs.h"

namespace tg::cpu::TG_ISA {

struct Axis {
  i64 size, in, out;  // strides in elements of an input and of an output
};

// Axes from outermost to innermost.
struct AxisList {
  int rank = 0;
  Axis axis[max_rank];

  void push(Axis a) {
    if (a.size != 1) axis[rank++] = a;
  }
  i64 numel() const {
    i64 n = 1;
    for (int i = 0; i < rank; ++i) n *= axis[i].size;
    return n;
  }
  const Axis& inner() const { return axis[rank - 1]; }
  // Sorts the axes by their strides in the input or output. For callers that can use any order.
  void sort(i64 Axis::*by = &Axis::in) {
    for (int i = 1; i < rank; ++i)
      for (int k = i; k > 0 && axis[k - 1].*by < axis[k].*by; --k) swap(axis[k - 1], axis[k]);
  }
  // Merges two adjacent axes if the outer stride equals the inner stride times the inner size.
  void merge() {
    int n = 0;
    for (int i = 0; i < rank; ++i) {
      const Axis& a = axis[i];
      if (n > 0 && axis[n - 1].in == a.in * a.size && axis[n - 1].out == a.out * a.size)
        axis[n - 1] = {axis[n - 1].size * a.size, a.in, a.out};
      else
        axis[n++] = a;
    }
    rank = n;
  }
  // Returns the list without its innermost axis.
  AxisList outer() const {
    AxisList l = *this;
    if (l.rank > 0) --l.rank;
    return l;
  }
};

// Returns axes first … last - 1 of a layout, merged. Strides are multiplied by `scale`. If `out` is given,
// its axes starting at `out_first` have the same sizes.
inline AxisList axes_of(const Layout& in, int first, int last, i64 scale, const Layout* out = nullptr,
                        int out_first = 0, i64 out_scale = 1) {
  AxisList l;
  for (int a = first; a < last; ++a)
    l.push({in.shape[a], in.strides[a] * scale, out ? out->strides[out_first + a - first] * out_scale : 0});
  l.merge();
  return l;
}

// The kept axes and the reduced axes of a reduction of x. For a kept axis, `out` is the stride in the result
// y.
struct ReducedAxes {
  AxisList kept, reduced;
  ReducedAxes(const Layout& x, const Layout& y, const ReduceAttrs& a) {
    for (int i = 0, o = 0; i < x.rank(); ++i) {
      const bool is_reduced = a.axes.contains(i);
      if (is_reduced)
        reduced.push({x.shape[i], x.strides[i], 0});
      else
        kept.push({x.shape[i], x.strides[i], y.strides[o]});
      o += !is_reduced || a.keepdim;
    }
  }
};

// Iterates over the index tuples of a list in row-major order and tracks both offsets. After the last tuple
// it restarts at the first.
class Counter {
 public:
  Counter(const AxisList& list, i64 start) : list_(list) {
    for (int a = list.rank - 1; a >= 0; --a) {
      index_[a] = a > 0 ? start % list.axis[a].size : start;
      start /= list.axis[a].size;
      in += index_[a] * list.axis[a].in;
      out += index_[a] * list.axis[a].out;
    }
  }
  void next() {
    for (int a = list_.rank - 1; a >= 0; --a) {
      const Axis& x = list_.axis[a];
      in += x.in, out += x.out;
      if (++index_[a] < x.size) return;
      in -= x.in * x.size, out -= x.out * x.size;
      index_[a] = 0;
    }
  }
  i64 in = 0, out = 0;

 private:
  const AxisList& list_;
  i64 index_[max_rank];
};

// Divides elements start … start + n - 1 of a list into runs along the innermost axis, which is `run`. Calls
// f(number of earlier elements, offset in the input, offset in the output, length) for each run.
template <class F>
TG_INLINE void each_run(const AxisList& outer, const Axis& run, i64 start, i64 n, F f) {
  Counter row(outer, start / run.size);
  for (i64 at = 0, in_row = start % run.size; at < n; in_row = 0, row.next()) {
    const i64 m = run.size - in_row < n - at ? run.size - in_row : n - at;
    f(at, row.in + in_row * run.in, row.out + in_row * run.out, m);
    at += m;
  }
}

}  // namespace tg::cpu::TG_ISA
