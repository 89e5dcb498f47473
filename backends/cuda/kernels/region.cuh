// A region over which several operands are accessed together. Each operand may have any strides. Also copies
// between such regions.
#pragma once

#include <initializer_list>

#include "backends/cuda/kernels/elements.cuh"

namespace tg::cuda {

// The axes of the region from outermost to innermost. Two adjacent axes are merged if, in every operand, the
// outer stride equals the inner stride times the inner size. Strides are in elements. After group(), they are
// in units of several elements.
template <int N>
struct Region {
  int rank = 0;
  i64 numel = 1;
  i64 size[max_rank];
  i64 stride[max_rank][N];

  // Appends an inner axis.
  void axis(i64 n, std::initializer_list<std::int64_t> steps) {
    numel *= n;
    if (n == 1) return;
    const std::int64_t* step = steps.begin();
    bool merges = rank > 0;
    for (int k = 0; merges && k < N; ++k) merges = stride[rank - 1][k] == n * step[k];
    if (!merges) size[rank++] = 1;
    size[rank - 1] *= n;
    for (int k = 0; k < N; ++k) stride[rank - 1][k] = step[k];
  }

  // Returns the number of adjacent elements along the innermost axis that one access can read in all
  // operands. These elements must be contiguous and aligned. The number is at most `most`, a power of two.
  // `step` is an additional stride between addresses.
  int vector(int most, const std::size_t (&bytes)[N], const void* const (&address)[N], i64 step = 0) const {
    for (int v = rank > 0 ? most : 1; v > 1; v /= 2) {
      bool fits = size[rank - 1] % v == 0 && step % v == 0;
      for (int k = 0; fits && k < N; ++k) {
        fits = stride[rank - 1][k] == 1 &&
               reinterpret_cast<std::uintptr_t>(address[k]) % (bytes[k] * static_cast<std::size_t>(v)) == 0;
        for (int a = 0; fits && a + 1 < rank; ++a) fits = stride[a][k] % v == 0;
      }
      if (fits) return v;
    }
    return 1;
  }
  // Converts from elements to units of v elements along the innermost axis.
  void group(int v) {
    if (v == 1) return;
    numel /= v;
    size[rank - 1] /= v;
    for (int a = 0; a + 1 < rank; ++a)
      for (int k = 0; k < N; ++k) stride[a][k] /= v;
  }

  // Returns the offset of element i of the region in each operand. If `unsigned` is large enough, I is
  // `unsigned`. It is several times faster than unsigned long long.
  template <class I>
  __device__ __forceinline__ void offsets(I i, i64 (&at)[N]) const {
    for (int k = 0; k < N; ++k) at[k] = 0;
    for (int a = rank - 1; a >= 0; --a) {
      I x = i;
      if (a > 0) {
        i /= static_cast<I>(size[a]);
        x -= i * static_cast<I>(size[a]);
      }
      for (int k = 0; k < N; ++k) at[k] += static_cast<i64>(x) * stride[a][k];
    }
  }
};

template <class I>
__device__ __forceinline__ i64 offset_in(const Region<1>& r, I i) {
  i64 at[1];
  r.offsets(i, at);
  return at[0];
}

// A whole operand, row-major.
inline Region<1> region_of(const Layout& l) {
  Region<1> r;
  for (int a = 0; a < l.rank(); ++a) r.axis(l.shape[a], {l.strides[a]});
  return r;
}

// Calls f with a null pointer to a type of this many bytes: an element, or a unit of up to 16 bytes.
template <class F>
void with_element(std::size_t bytes, F&& f) {
  if (bytes == 1) return f(static_cast<unsigned char*>(nullptr));
  if (bytes == 2) return f(static_cast<unsigned short*>(nullptr));
  if (bytes == 4) return f(static_cast<unsigned*>(nullptr));
  f(static_cast<unsigned long long*>(nullptr));
}
template <class F>
void with_unit(std::size_t bytes, F&& f) {
  if (bytes == 16) return f(static_cast<uint4*>(nullptr));
  with_element(bytes, f);
}
// Calls f with a null pointer to the narrowest unsigned type that can represent n plus the size of a block.
template <class F>
void with_count(i64 n, F&& f) {
  if (n < (i64{1} << 31)) return f(static_cast<unsigned*>(nullptr));
  f(static_cast<unsigned long long*>(nullptr));
}

// Indices, i64 or i32.
struct Indices {
  const std::byte* data;
  bool wide;

  explicit Indices(const Arg& a) : data(a.data), wide(a.dtype == DType::i64) {}
  __device__ __forceinline__ i64 operator[](i64 at) const {
    return wide ? reinterpret_cast<const i64*>(data)[at] : i64{reinterpret_cast<const int*>(data)[at]};
  }
};

__device__ __forceinline__ bool is_within(i64 index, i64 size) {
  return static_cast<unsigned long long>(index) < static_cast<unsigned long long>(size);
}

// V elements that are read and written together.
template <class S, int V>
struct alignas(sizeof(S) * V < 16 ? sizeof(S) * V : 16) Unit {
  S at[V];
};

inline constexpr int threads_per_block = 256;  // block size of launches with a thread per element or unit

// The index of this thread in the whole launch.
template <class I>
__device__ __forceinline__ I thread_number() {
  return static_cast<I>(blockIdx.x) * threads_per_block + threadIdx.x;
}

// Launches a kernel with a thread per element or unit.
template <class... P>
void launch_threads(const Stream& s, i64 n, void (*kernel)(P...), const std::type_identity_t<P>&... args) {
  launch_early(s, {blocks_for(n, threads_per_block), threads_per_block}, kernel, args...);
}

// to = from. Both have the same shape and dtype, and any strides. They must not overlap.
void copy(const Stream& s, const Arg& to, const Arg& from);

}  // namespace tg::cuda
