#include "backends/cpu/kernels/strided.h"

#include <cstring>

namespace tg::cpu::TG_ISA {

Move::Move(int axes, const i64* sizes, DType dtype, std::byte* target, const i64* to_strides,
           const std::byte* source, const i64* from_strides)
    : size(static_cast<i64>(size_of(dtype))), to(target), from(source) {
  for (int a = 0; a < axes; ++a) outer.push({sizes[a], from_strides[a] * size, to_strides[a] * size});
  numel = outer.numel();
  outer.sort(&Axis::out), outer.merge();
  run = outer.rank > 0 ? outer.inner() : Axis{1, size, size};
  outer = outer.outer();
}

namespace {

template <class T>
void copy_run(std::byte* to, i64 ts, const std::byte* from, i64 fs, i64 n) {
  if (ts == static_cast<i64>(sizeof(T)) && fs == 0) {
    T v;
    __builtin_memcpy(&v, from, sizeof v);
    T* out = reinterpret_cast<T*>(to);
    for (i64 i = 0; i < n; ++i) out[i] = v;
    return;
  }
  for (i64 i = 0; i < n; ++i) __builtin_memcpy(to + i * ts, from + i * fs, sizeof(T));
}

}  // namespace

void move_elements(const Move& m, i64 begin, i64 end) {
  if (begin >= end) return;
  const i64 ts = m.run.out, fs = m.run.in;
  each_run(m.outer, m.run, begin, end - begin, [&](i64, i64 in, i64 out, i64 n) {
    if (ts == m.size && fs == m.size)
      std::memcpy(m.to + out, m.from + in, static_cast<std::size_t>(n * m.size));
    else
      with_bits(static_cast<std::size_t>(m.size),
                [&]<class T>(T) { copy_run<T>(m.to + out, ts, m.from + in, fs, n); });
  });
}

}  // namespace tg::cpu::TG_ISA
