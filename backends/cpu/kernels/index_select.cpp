// index_select: out[p, j, q] = x[p, indices[j], q], where p, j and q stand for any number of axes each.
// embedding is the same without p.
#include "backends/cpu/kernels/strided.h"
#include "ops/index.h"

namespace tg::cpu::TG_ISA {

namespace {

void run(Worker& w, const Call& call) {
  const Arg &x = call.in[0], &indices = call.in[1], &out = call.out[0];
  const int axis = static_cast<int>(call.attrs->as<AxisAttrs>().axis);
  if (out.layout.numel() == 0) return;
  const i64 size = static_cast<i64>(size_of(x.dtype)), step = x.layout.strides[axis] * size;
  const i64 index_size = static_cast<i64>(size_of(indices.dtype)), js = indices.layout.numel();
  const AxisList before = axes_of(x.layout, 0, axis, size),
                 number = axes_of(indices.layout, 0, indices.layout.rank(), index_size);
  const i64 slices = before.numel() * js;  // pairs (p, j)
  const Move slice(x.layout.rank() - axis - 1, x.layout.shape.begin() + axis + 1, x.dtype, out.data,
                   out.layout.strides.begin() + axis + indices.layout.rank(), x.data,
                   x.layout.strides.begin() + axis + 1);
  // A part is a number of whole slices, or a piece of a large one.
  const i64 per_part = slice.numel < moved_at_once ? moved_at_once / slice.numel : 1;
  const i64 pieces = (slice.numel + moved_at_once - 1) / moved_at_once;
  w.each((slices + per_part - 1) / per_part * pieces, [&](i64 part) {
    const i64 first = part / pieces * per_part, begin = part % pieces * moved_at_once;
    const i64 last = first + per_part < slices ? first + per_part : slices;
    const i64 end = begin + moved_at_once < slice.numel ? begin + moved_at_once : slice.numel;
    i64 j = first % js;
    Counter p(before, first / js), n(number, j);
    Move m = slice;
    for (i64 s = first; s < last; ++s) {
      const i64 index = read_index(indices, n.in);
      if (w.check_index(index, x.layout.shape[axis], j)) {
        m.to = out.data + s * slice.numel * size;
        m.from = x.data + p.in + index * step;
        move_elements(m, begin, end);
      }
      n.next();
      if (++j == js) j = 0, p.next();
    }
  });
}

}  // namespace

extern const Kernel index_select_kernel{&run};
extern const Kernel embedding_kernel{&run};

}  // namespace tg::cpu::TG_ISA
