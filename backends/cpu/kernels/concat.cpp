// concat: the inputs one after the other along an axis.
#include "backends/cpu/kernels/strided.h"
#include "ops/index.h"

namespace tg::cpu::TG_ISA {

namespace {

void run(Worker& w, const Call& call) {
  const int axis = static_cast<int>(call.attrs->as<AxisAttrs>().axis);
  const Arg& out = call.out[0];
  const i64 step = out.layout.strides[axis] * static_cast<i64>(size_of(out.dtype));
  int last = 0;
  i64 start = 0;  // where input `last` begins along the axis
  const auto at = [&](int i) {
    if (i < last) last = 0, start = 0;
    for (; last < i; ++last) start += call.in[static_cast<std::size_t>(last)].layout.shape[axis];
    const Arg& x = call.in[static_cast<std::size_t>(i)];
    return Move(x.layout.rank(), x.layout.shape.begin(), x.dtype, out.data + start * step,
                out.layout.strides.begin(), x.data, x.layout.strides.begin());
  };
  move_all(w, static_cast<int>(call.in.size()), at);
}

}  // namespace

extern const Kernel concat_kernel{&run};

}  // namespace tg::cpu::TG_ISA
