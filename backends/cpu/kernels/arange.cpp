// arange: out_i = start + i·step, computed in f64 (integers in i64) and rounded once.
#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/kernels/simd.h"
#include "ops/index.h"

namespace tg::cpu::TG_ISA {

namespace {

constexpr i64 block = piece_size(256, 32);

template <class C>
void run_as(Worker& w, const Call& call, DType compute) {
  const Arg& out = call.out[0];  // one dense axis
  const auto& a = call.attrs->as<ArangeAttrs>();
  const i64 n = out.layout.numel(), size = static_cast<i64>(size_of(out.dtype));
  const C start = static_cast<C>(a.start), step = static_cast<C>(a.step);
  const StoreFn store = block_store(compute, out.dtype);
  w.each((n + block - 1) / block, [&](i64 part) {
    C values[block];
    const i64 first = part * block, many = n - first < block ? n - first : block;
    for (i64 i = 0; i < many; ++i) values[i] = start + static_cast<C>(first + i) * step;
    store(out.data + first * size, values, 1, many);
  });
}

void run(Worker& w, const Call& call) {
  if (compute_type(call.out[0].dtype) == DType::i64) return run_as<i64>(w, call, DType::i64);
  run_as<double>(w, call, DType::f64);
}

}  // namespace

extern const Kernel arange_kernel{&run};

}  // namespace tg::cpu::TG_ISA
