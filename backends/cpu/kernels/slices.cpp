// Copies of tensor regions. concat copies the inputs one after another along an axis. slice_assign: out = x,
// then out[…, start + i·step, …] = src[…, i, …]. slice_at: out[…, i, …] = x[…, start + i, …]. If `out` shares
// the memory of x, only the region is accessed.
#include "backends/cpu/kernels/strided.h"
#include "ops/index.h"

namespace tg::cpu::TG_ISA {

namespace {

// Returns the address of x[…, index, …].
std::byte* at_index(const Arg& x, int axis, i64 index) {
  return x.data + index * x.layout.strides[axis] * static_cast<i64>(size_of(x.dtype));
}

void run_concat(Worker& w, const Call& call) {
  const int axis = static_cast<int>(call.attrs->as<AxisAttrs>().axis);
  const Arg& out = call.out[0];
  const i64 step = out.layout.strides[axis] * static_cast<i64>(size_of(out.dtype));
  int last = 0;
  i64 start = 0;  // offset of input `last` along the axis
  const auto at = [&](int i) {
    if (i < last) last = 0, start = 0;
    for (; last < i; ++last) start += call.in[static_cast<std::size_t>(last)].layout.shape[axis];
    const Arg& x = call.in[static_cast<std::size_t>(i)];
    return Move(x.layout.rank(), x.layout.shape.begin(), x.dtype, out.data + start * step,
                out.layout.strides.begin(), x.data, x.layout.strides.begin());
  };
  move_all(w, static_cast<int>(call.in.size()), at);
}

void run_assign(Worker& w, const Call& call) {
  const Arg &x = call.in[0], &src = call.in[1], &out = call.out[0];
  const auto& a = call.attrs->as<SliceAssignAttrs>();
  const int axis = static_cast<int>(a.axis);
  const bool given = call.in.size() == 3;
  const i64 start = given ? read_index(call.in[2], 0) : a.start;
  if (given && !w.check_index(start, x.layout.shape[axis] - src.layout.shape[axis] + 1, 0)) return;
  if (out.data != x.data) {
    move_all(w, Move(out, x));
    if (!w.barrier()) return;
  }
  const Layout& part = src.layout;
  Strides to = out.layout.strides;
  to[axis] *= a.step;
  move_all(w, Move(part.rank(), part.shape.begin(), out.dtype, at_index(out, axis, start), to.begin(),
                   src.data, part.strides.begin()));
}

void run_at(Worker& w, const Call& call) {
  const Arg &x = call.in[0], &out = call.out[0];
  const int axis = static_cast<int>(call.attrs->as<SliceAtAttrs>().axis);
  const i64 start = read_index(call.in[1], 0), last = x.layout.shape[axis] - out.layout.shape[axis];
  if (!w.check_index(start, last + 1, 0)) return;
  move_all(w, Move(out.layout.rank(), out.layout.shape.begin(), out.dtype, out.data,
                   out.layout.strides.begin(), at_index(x, axis, start), x.layout.strides.begin()));
}

}  // namespace

extern const Kernel concat_kernel{&run_concat};
extern const Kernel slice_assign_kernel{&run_assign};
extern const Kernel slice_at_kernel{&run_at};

}  // namespace tg::cpu::TG_ISA
