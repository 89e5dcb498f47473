// Lists of axes that kernels iterate over: sizes and strides, merged where possible, and a counter over all
// their index tuples.
#pragma once

#include <tilegrad/core/base/layout.h>
#include "backends/cpu/kernels/simd.h"

namespace tg::cpu::TG_ISA {

// The vector of a compute type: double, float or i64.
template <class C>
struct VectorFor {
  using type = vector_t<C>;
};
template <>
struct VectorFor<i64> {
  using type = I64;
};

struct Axis {
  i64 size, in, out;  // strides in elements of an input and of an output
};

// Axes from the outermost to the innermost.
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
  // Sorts the axes by their strides in the input, for cases where the order does not matter.
  void sort() {
    for (int i = 1; i < rank; ++i)
      for (int k = i; k > 0 && axis[k - 1].in < axis[k].in; --k) {
        const Axis a = axis[k];
        axis[k] = axis[k - 1];
        axis[k - 1] = a;
      }
  }
  // Merges two neighbouring axes where the outer stride is the inner stride times the inner size.
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
  // The list without its innermost axis.
  AxisList outer() const {
    AxisList l = *this;
    if (l.rank > 0) --l.rank;
    return l;
  }
};

// Steps through the index tuples of a list in row-major order, keeping the two offsets.
class Counter {
 public:
  Counter(const AxisList& list, i64 start) : list_(list) {
    for (int a = list.rank - 1; a >= 0; --a) {
      index_[a] = start % list.axis[a].size;
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

}  // namespace tg::cpu::TG_ISA
