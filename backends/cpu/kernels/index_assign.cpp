// index_assign: out = x, then out[p, indices[j], q] = src[p, j, q] for every j whose index is not −1, where
// p, j and q stand for any number of axes each. A thread processes some of p and q, and all j in order. If
// indices are equal, the last one therefore determines the result. The tensors of a list are processed one
// after another.
#include "backends/cpu/kernels/strided.h"
#include "ops/index.h"

namespace tg::cpu::TG_ISA {

namespace {

void assign(Worker& w, const Arg& x, const Arg& indices, const Arg& src, const Arg& out, int axis) {
  if (src.layout.numel() == 0) return;
  const int rank = x.layout.rank();
  // For axes a after the indexed axis, axis a of x is axis a + more of src.
  const int more = indices.layout.rank() - 1;
  const i64 size = static_cast<i64>(size_of(x.dtype)), step = out.layout.strides[axis] * size;
  // Axes p and j. `in` is the stride in src. `out` is the stride in `out` (axes p) or in the indices (axes
  // j). All strides are in bytes.
  const AxisList before = axes_of(src.layout, 0, axis, size, &out.layout, 0, size);
  const AxisList indexed = axes_of(src.layout, axis, axis + more + 1, size, &indices.layout, 0,
                                   static_cast<i64>(size_of(indices.dtype)));
  const i64 count = indices.layout.numel();
  const Move slice(rank - axis - 1, x.layout.shape.begin() + axis + 1, x.dtype, out.data,
                   out.layout.strides.begin() + axis + 1, src.data,
                   src.layout.strides.begin() + axis + more + 1);
  const i64 piece = moved_at_once / count > 64 ? moved_at_once / count : 64,
            pieces = (slice.numel + piece - 1) / piece;
  w.each(before.numel() * pieces, [&](i64 part) {
    const i64 begin = part % pieces * piece, end = begin + piece < slice.numel ? begin + piece : slice.numel;
    const Counter p(before, part / pieces);
    Counter place(indexed, 0);
    Move m = slice;
    for (i64 j = 0; j < count; ++j, place.next()) {
      const i64 index = read_index(indices, place.out);
      if (index == -1 || !w.check_index(index, x.layout.shape[axis], j)) continue;
      m.to = out.data + p.out + index * step;
      m.from = src.data + p.in + place.in;
      move_elements(m, begin, end);
    }
  });
}

void run(Worker& w, const Call& call) {
  const int axis = static_cast<int>(call.attrs->as<AxisAttrs>().axis);
  for (std::size_t i = 0; i < call.out.size(); ++i) {
    const Arg &x = call.in[2 * i], &out = call.out[i];
    if (out.data != x.data) move_all(w, Move(out, x));
    if (!w.barrier()) return;
    assign(w, x, call.in.back(), call.in[2 * i + 1], out, axis);
  }
}

}  // namespace

extern const Kernel index_assign_kernel{&run};

}  // namespace tg::cpu::TG_ISA
