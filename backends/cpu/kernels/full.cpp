// Results without operands. full: every element has the same value, which is converted once and then copied.
// arange: out_i = start + i·step, computed in f64 (integers in i64) and rounded once.
#include <tilegrad/core/graph/graph.h>
#include "backends/cpu/kernels/kernels.h"
#include "ops/index.h"

namespace tg::cpu::TG_ISA {

namespace {

void run_full(Worker& w, const Call& call) {
  const Arg& out = call.out[0];  // dense: the op lays it out row-major
  const double value = call.attrs->as<FullAttrs>().value;
  const i64 n = out.layout.numel();
  alignas(8) std::byte element[8];
  block_store(DType::f64, out.dtype)(element, &value, 1, 1);
  with_bits(size_of(out.dtype), [&]<class Bits>(Bits bits) {
    __builtin_memcpy(&bits, element, sizeof bits);
    Bits* to = reinterpret_cast<Bits*>(out.data);
    constexpr i64 part = piece_size(1 << 16, 64);
    w.each(ceil_div(n, part), [=](i64 p) {
      const i64 end = (p + 1) * part < n ? (p + 1) * part : n;
      for (i64 i = p * part; i < end; ++i) to[i] = bits;
    });
  });
}

template <class C>
void arange_as(Worker& w, const Call& call) {
  constexpr i64 block = piece_size(256, 32);
  const Arg& out = call.out[0];  // one dense axis
  const auto& a = call.attrs->as<ArangeAttrs>();
  const i64 n = out.layout.numel(), size = static_cast<i64>(size_of(out.dtype));
  const C start = static_cast<C>(a.start), step = static_cast<C>(a.step);
  const StoreFn store = block_store(dtype_of<C>, out.dtype);
  w.each((n + block - 1) / block, [&](i64 part) {
    C values[block];
    const i64 first = part * block, many = n - first < block ? n - first : block;
    for (i64 i = 0; i < many; ++i) values[i] = start + static_cast<C>(first + i) * step;
    store(out.data + first * size, values, 1, many);
  });
}

void run_arange(Worker& w, const Call& call) {
  compute_type(call.out[0].dtype) == DType::i64 ? arange_as<i64>(w, call) : arange_as<double>(w, call);
}

}  // namespace

extern const Kernel full_kernel{&run_full};
extern const Kernel arange_kernel{&run_arange};

}  // namespace tg::cpu::TG_ISA
