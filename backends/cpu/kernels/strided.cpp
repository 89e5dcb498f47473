#include "backends/cpu/kernels/strided.h"

#include <cstring>

namespace tg::cpu::TG_ISA {

Move::Move(int axes, const i64* sizes, DType dtype, std::byte* target, const i64* to_strides,
           const std::byte* source, const i64* from_strides)
    : size(static_cast<i64>(size_of(dtype))), to(target), from(source) {
  int order[max_rank], kept = 0;
  for (int a = 0; a < axes; ++a) {
    numel *= sizes[a];
    if (sizes[a] == 1) continue;
    int at = kept++;
    for (; at > 0 && to_strides[order[at - 1]] < to_strides[a]; --at) order[at] = order[at - 1];
    order[at] = a;
  }
  for (int k = 0; k < kept; ++k) {
    const int a = order[k];
    const i64 ts = to_strides[a] * size, fs = from_strides[a] * size;
    if (rank > 0 && to_stride[rank - 1] == sizes[a] * ts && from_stride[rank - 1] == sizes[a] * fs) {
      shape[rank - 1] *= sizes[a];
      to_stride[rank - 1] = ts;
      from_stride[rank - 1] = fs;
      continue;
    }
    shape[rank] = sizes[a];
    to_stride[rank] = ts;
    from_stride[rank++] = fs;
  }
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
  if (m.rank == 0) {
    std::memcpy(m.to, m.from, static_cast<std::size_t>(m.size));
    return;
  }
  const int last = m.rank - 1;
  const i64 ts = m.to_stride[last], fs = m.from_stride[last];
  i64 index[max_rank];
  std::byte* to = m.to;
  const std::byte* from = m.from;
  for (i64 rest = begin, a = last; a >= 0; --a) {
    index[a] = rest % m.shape[a];
    rest /= m.shape[a];
    to += index[a] * m.to_stride[a];
    from += index[a] * m.from_stride[a];
  }
  for (i64 done = begin; done < end;) {
    const i64 left = m.shape[last] - index[last], n = left < end - done ? left : end - done;
    if (ts == m.size && fs == m.size)
      std::memcpy(to, from, static_cast<std::size_t>(n * m.size));
    else if (m.size == 4)
      copy_run<std::uint32_t>(to, ts, from, fs, n);
    else if (m.size == 8)
      copy_run<std::uint64_t>(to, ts, from, fs, n);
    else if (m.size == 2)
      copy_run<std::uint16_t>(to, ts, from, fs, n);
    else
      copy_run<std::uint8_t>(to, ts, from, fs, n);
    done += n;
    index[last] += n;
    to += n * ts;
    from += n * fs;
    for (int a = last; a > 0 && index[a] == m.shape[a]; --a) {
      to += m.to_stride[a - 1] - index[a] * m.to_stride[a];
      from += m.from_stride[a - 1] - index[a] * m.from_stride[a];
      index[a] = 0;
      ++index[a - 1];
    }
  }
}

}  // namespace tg::cpu::TG_ISA
