// gather: out[a, b, c] = x[a, indices[a, b, c], c]. The indexed axis may be any axis.
#include "backends/cpu/kernels/strided.h"
#include "ops/index.h"

namespace tg::cpu::TG_ISA {

namespace {

template <class T>
void gather_as(Worker& w, const Call& call) {
  const Arg &x = call.in[0], &indices = call.in[1], &out = call.out[0];
  const int axis = static_cast<int>(call.attrs->as<AxisAttrs>().axis), last = out.layout.rank() - 1;
  const i64 size = sizeof(T), index_size = static_cast<i64>(size_of(indices.dtype));
  const i64 length = out.layout.shape[last], bound = x.layout.shape[axis];
  const i64 step = x.layout.strides[axis] * size;
  const i64 x_step = axis == last ? 0 : x.layout.strides[last] * size;
  const i64 index_step = indices.layout.strides[last] * index_size;
  AxisList outer;  // `in`: of x, `out`: of indices, in bytes
  for (int a = 0; a < last; ++a)
    outer.push({out.layout.shape[a], a == axis ? 0 : x.layout.strides[a] * size,
                indices.layout.strides[a] * index_size});
  outer.merge();
  const i64 rows = out.layout.numel() / length, rows_at_once = 1 + moved_at_once / 4 / length;
  w.each((rows + rows_at_once - 1) / rows_at_once, [&](i64 part) {
    const i64 first = part * rows_at_once, end = first + rows_at_once < rows ? first + rows_at_once : rows;
    Counter at(outer, first);
    T* to = reinterpret_cast<T*>(out.data) + first * length;
    for (i64 row = first; row < end; ++row, to += length, at.next())
      for (i64 i = 0; i < length; ++i) {
        const i64 index = read_index(indices, at.out + i * index_step);
        if (w.check_index(index, bound, row * length + i))
          __builtin_memcpy(to + i, x.data + at.in + i * x_step + index * step, sizeof(T));
      }
  });
}

void run(Worker& w, const Call& call) {
  if (call.out[0].layout.numel() == 0) return;
  with_bits(size_of(call.out[0].dtype), [&]<class T>(T) { gather_as<T>(w, call); });
}

}  // namespace

extern const Kernel gather_kernel{&run};

}  // namespace tg::cpu::TG_ISA
