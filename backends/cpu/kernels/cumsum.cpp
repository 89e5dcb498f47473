// cumsum: out_i = Σ_{j ≤ i} x_j along an axis, or Σ_{j ≥ i} x_j in reverse. Floats are summed in f64.
#include "backends/cpu/kernels/lines.h"
#include "ops/index.h"

namespace tg::cpu::TG_ISA {

namespace {

constexpr i64 block = piece_size(256, 32);

// total += row and sums = total, for n elements. `sums` may be `row` itself.
template <class S>
void add_row(double* total, const S* row, S* sums, i64 n) {
  i64 i = 0;
  if constexpr (std::is_same_v<S, float>) {
#pragma GCC ivdep
    for (; i < n; ++i) sums[i] = static_cast<float>(total[i] += static_cast<double>(row[i]));
  } else {
    for (; i + lanes<F32> <= n; i += lanes<F32>) {
      const F32 next = load(row + i);
      const F64 low = load(total + i) + low_half(next), high = load(total + i + lanes<F64>) + high_half(next);
      store(total + i, low), store(total + i + lanes<F64>, high);
      store(sums + i, odd_floats(low, high));
    }
    for (; i < n; ++i) sums[i] = S(total[i] += static_cast<double>(static_cast<float>(row[i])));
  }
}
using AddRow = void (*)(double* total, const std::byte* row, std::byte* sums, i64 n);
template <class S>
constexpr AddRow add_row_of = [](double* total, const std::byte* row, std::byte* sums, i64 n) {
  add_row(total, reinterpret_cast<const S*>(row), reinterpret_cast<S*>(sums), n);
};
AddRow add_row_for(DType type) {
  return type == DType::f32    ? add_row_of<float>
         : type == DType::bf16 ? add_row_of<bfloat16>
         : type == DType::f16  ? add_row_of<float16>
                               : nullptr;
}

template <class C>
void run_as(Worker& w, const Call& call) {
  const Arg &x = call.in[0], &out = call.out[0];
  const auto& a = call.attrs->as<CumsumAttrs>();
  const Lines lines(out.layout, static_cast<int>(a.axis), block);
  const i64 size = static_cast<i64>(size_of(x.dtype)), length = lines.length;
  const i64 x_step = x.layout.strides[lines.axis], out_step = out.layout.strides[lines.axis];
  const LoadFn load = block_load(x.dtype, dtype_of<C>);
  const StoreFn store = block_store(dtype_of<C>, x.dtype);
  lines.each(w, [&](i64 group) {
    const std::byte* from = x.data + lines.offset(group, x.layout) * size;
    std::byte* to = out.data + lines.offset(group, out.layout) * size;
    C total[block], next[block];
    if (lines.run < 0) {
      C sum = 0;
      for (i64 done = 0; done < length; done += block) {
        const i64 n = length - done < block ? length - done : block;
        const i64 first = a.reverse ? length - done - n : done;
        load(next, from + first * x_step * size, x_step, n);
        if (a.reverse)
          for (i64 i = n; i-- > 0;) next[i] = sum += next[i];
        else
          for (i64 i = 0; i < n; ++i) next[i] = sum += next[i];
        store(to + first * out_step * size, next, out_step, n);
      }
      return;
    }
    const i64 n = lines.lines(group);
    for (i64 i = 0; i < n; ++i) total[i] = 0;
    const bool is_contiguous = lines.run_step(x.layout) == 1 && lines.run_step(out.layout) == 1;
    const AddRow add_row = is_contiguous ? add_row_for(x.dtype) : nullptr;
    for (i64 t = 0; t < length; ++t) {
      const i64 at = a.reverse ? length - 1 - t : t;
      if constexpr (std::is_same_v<C, double>)
        if (add_row) {
          add_row(total, from + at * x_step * size, to + at * out_step * size, n);
          continue;
        }
      load(next, from + at * x_step * size, lines.run_step(x.layout), n);
      for (i64 i = 0; i < n; ++i) total[i] += next[i];
      store(to + at * out_step * size, total, lines.run_step(out.layout), n);
    }
  });
}

void run(Worker& w, const Call& call) {
  if (call.out[0].layout.numel() == 0) return;
  is_float(call.out[0].dtype) ? run_as<double>(w, call) : run_as<i64>(w, call);
}

}  // namespace

extern const Kernel cumsum_kernel{&run};

}  // namespace tg::cpu::TG_ISA
