// Work along one axis of a tensor. A line consists of the elements along that axis. Lines along the innermost
// axis are processed one at a time. For any other axis, adjacent lines form a group, so that memory is read
// in whole cache lines.
#pragma once

#include "backends/cpu/kernels/kernels.h"

namespace tg::cpu::TG_ISA {

struct Lines {
  const Layout* shape;           // of the tensor
  int axis, run = -1;            // run: the axis of adjacent lines; -1: no groups
  i64 length;                    // of a line
  i64 width = 1;                 // lines in a group; the last group of a run may have fewer
  i64 along_run = 1, count = 1;  // number of groups

  Lines(const Layout& l, int axis, i64 widest) : shape(&l), axis(axis), length(l.shape[axis]) {
    for (int a = axis + 1; a < l.rank(); ++a)
      if (l.shape[a] > 1) run = a;
    if (run >= 0) {
      width = l.shape[run] < widest ? l.shape[run] : widest;
      along_run = (l.shape[run] + width - 1) / width;
    }
    for (int a = 0; a < l.rank(); ++a)
      if (a != axis) count *= a == run ? along_run : l.shape[a];
  }

  // Calls f(a, i) for each axis a except `axis`, where i is the index of the group on axis a. On `run`, i is
  // the index of the group's first line.
  template <class F>
  TG_INLINE void for_index(i64 group, F f) const {
    if (run >= 0) f(run, group % along_run * width);
    group /= along_run;
    for (int a = shape->rank() - 1; a >= 0; --a) {
      if (a == axis || a == run) continue;
      f(a, group % shape->shape[a]);
      group /= shape->shape[a];
    }
  }
  // Returns the number of lines in the group.
  i64 lines(i64 group) const {
    if (run < 0) return 1;
    const i64 left = shape->shape[run] - group % along_run * width;
    return left < width ? left : width;
  }
  // Returns the offset in elements of the group's first element in a tensor with these strides.
  i64 offset(i64 group, const Layout& l) const {
    i64 at = 0;
    for_index(group, [&](int a, i64 i) { at += i * l.strides[a]; });
    return at;
  }
  i64 run_step(const Layout& l) const { return run < 0 ? 1 : l.strides[run]; }

  // Hands out groups to the team, several at a time if lines are short. This counts as one call of each().
  template <class F>
  void each(Worker& w, F&& f) const {
    const i64 at_once = 1 + piece_size(1 << 13, 64) / (length * width + 1);
    w.each((count + at_once - 1) / at_once, [&](i64 part) {
      for (i64 g = part * at_once; g < (part + 1) * at_once && g < count; ++g) f(g);
    });
  }
};

}  // namespace tg::cpu::TG_ISA
