// Iteration over strided memory, and copies of strided regions shared between threads. Types do not matter
// here: strides are in bytes.
#pragma once

#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/kernels/simd.h"

namespace tg::cpu::TG_ISA {

// The offsets of a tensor's elements in row-major order, one after the other.
struct Walk {
  int rank = 0;
  i64 shape[max_rank], stride[max_rank], index[max_rank] = {};
  i64 offset = 0;

  // Appends an inner axis, merged with the one before where a single stride walks both.
  void axis(i64 size, i64 step) {
    if (size == 1) return;
    if (rank > 0 && stride[rank - 1] == size * step) {
      shape[rank - 1] *= size;
      stride[rank - 1] = step;
      return;
    }
    shape[rank] = size;
    stride[rank++] = step;
  }
  void axes(const Layout& l, int first, int last, i64 scale) {  // axes first … last-1
    for (int a = first; a < last; ++a) axis(l.shape[a], l.strides[a] * scale);
  }
  void seek(i64 n) {  // to element n; the tensor must not be empty
    offset = 0;
    for (int a = rank - 1; a >= 0; --a) {
      index[a] = a > 0 ? n % shape[a] : n;
      offset += index[a] * stride[a];
      n /= shape[a];
    }
  }
  void next() {  // past the last element comes the first
    for (int a = rank - 1; a >= 0; --a) {
      offset += stride[a];
      if (++index[a] < shape[a]) return;
      offset -= shape[a] * stride[a];
      index[a] = 0;
    }
  }
};

// A copy of a region: to[i, j, …] = from[i, j, …], axes in an order that writes forwards, merged where one
// stride walks two of them.
struct Move {
  int rank = 0;
  i64 shape[max_rank], to_stride[max_rank], from_stride[max_rank];
  i64 numel = 1, size = 1;  // size: bytes of an element
  std::byte* to = nullptr;
  const std::byte* from = nullptr;

  Move() = default;
  // The region's axes in any order; strides in elements.
  Move(int axes, const i64* sizes, DType dtype, std::byte* to, const i64* to_strides, const std::byte* from,
       const i64* from_strides);
  Move(const Arg& to, const Arg& from)
      : Move(to.layout.rank(), to.layout.shape.begin(), to.dtype, to.data, to.layout.strides.begin(),
             from.data, from.layout.strides.begin()) {}
};

// Copies elements begin … end-1 of the region, in its own order.
void move_elements(const Move& m, i64 begin, i64 end);

inline constexpr i64 moved_at_once = piece_size(1 << 15, 64);  // elements in one part of shared work

// Makes the copies at(0) … at(count-1) together, in one each().
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

// Element `at` (an offset in bytes) of a tensor of i64 or i32.
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
