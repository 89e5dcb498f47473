// Copies of strided regions, which threads share. Strides are in bytes, so most code here is independent of
// the dtype.
#pragma once

#include "backends/cpu/kernels/axes.h"
#include "backends/cpu/kernels/kernels.h"

namespace tg::cpu::TG_ISA {

// A copy of a region: to[i, j, …] = from[i, j, …]. The axes are sorted so that writes are in ascending order.
// Two axes are merged if one stride covers both.
struct Move {
  AxisList outer;           // `in`: stride of `from`; `out`: stride of `to`; in bytes
  Axis run;                 // the innermost axis
  i64 numel = 1, size = 1;  // size: bytes of an element
  std::byte* to = nullptr;
  const std::byte* from = nullptr;

  // The axes may be in any order. Strides are in elements.
  Move(int axes, const i64* sizes, DType dtype, std::byte* to, const i64* to_strides, const std::byte* from,
       const i64* from_strides);
  Move(const Arg& to, const Arg& from)
      : Move(to.layout.rank(), to.layout.shape.begin(), to.dtype, to.data, to.layout.strides.begin(),
             from.data, from.layout.strides.begin()) {}
};

// Copies elements begin … end-1 of the region, in the order of its sorted axes.
void move_elements(const Move& m, i64 begin, i64 end);

inline constexpr i64 moved_at_once = piece_size(1 << 15, 64);  // elements in one part of shared work

// Makes the copies at(0) … at(count-1) in one each().
template <class At>
void move_all(Worker& w, int count, At&& at) {
  if (w.threads == 1) {
    for (int i = 0; i < count; ++i) {
      const Move m = at(i);
      move_elements(m, 0, m.numel);
    }
    return;
  }
  const auto parts_of = [](const Move& m) { return (m.numel + moved_at_once - 1) / moved_at_once; };
  i64 parts = 0;
  for (int i = 0; i < count; ++i) parts += parts_of(at(i));
  w.each(parts, [&](i64 p) {
    Move m = at(0);
    for (int i = 0; p >= parts_of(m); m = at(++i)) p -= parts_of(m);
    const i64 begin = p * moved_at_once, end = begin + moved_at_once;
    move_elements(m, begin, end < m.numel ? end : m.numel);
  });
}

inline void move_all(Worker& w, const Move& m) {
  move_all(w, 1, [&](int) { return m; });
}

// Reads element `at` (an offset in bytes) of a tensor of i64 or i32.
TG_INLINE i64 read_index(const Arg& x, i64 at) {
  if (x.dtype == DType::i32) {
    std::int32_t v;
    __builtin_memcpy(&v, x.data + at, sizeof v);
    return v;
  }
  i64 v;
  __builtin_memcpy(&v, x.data + at, sizeof v);
  return v;
}

}  // namespace tg::cpu::TG_ISA
