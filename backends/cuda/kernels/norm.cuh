// Shared by the kernels of layer_norm and rms_norm.
#pragma once

#include "backends/cuda/kernels/rows.cuh"
#include "ops/norm.h"

namespace tg::cuda {

// A weight or bias vector [n], with its own dtype and step. If there is none, data is null.
struct NormVector {
  const void* data = nullptr;
  DType type = DType::f32;
  i64 step = 0;
  bool in_packs = false;  // has the dtype of `rows`, contiguous and aligned to 16 bytes

  NormVector() = default;
  NormVector(const Arg& a, DType rows)
      : data(a.data),
        type(a.dtype),
        step(a.layout.strides[0]),
        in_packs(type == rows && step == 1 && reinterpret_cast<std::uintptr_t>(data) % 16 == 0) {}
};

// Loads elements i … i + V − 1 for rows that are held in registers. Uses `none` if there is no vector.
template <class S, class C, int V>
__device__ __forceinline__ void load_pack(C (&to)[V], const NormVector& v, i64 i, C none) {
  if (v.in_packs)
    return unpack(reinterpret_cast<const Words<S, V>*>(static_cast<const S*>(v.data) + i)[0], to);
#pragma unroll
  for (int e = 0; e < V; ++e) to[e] = v.data ? load_as<C>(v.data, v.type, (i + e) * v.step) : none;
}

// Returns element i for rows that are not held in registers.
template <class C>
__device__ __forceinline__ C element(const NormVector& v, i64 i) {
  return load_as<C>(v.data, v.type, i * v.step);
}

// The vector in shared memory, because registers limit the number of rows in flight on a multiprocessor. It
// is divided into packs of V elements, and packs into pieces of 16 bytes. The first pieces of all packs are
// stored first, then the second pieces of all packs. Lanes that read adjacent packs therefore have no bank
// conflicts.
template <class C, int V>
struct StagedVector {
  static constexpr int E = 16 / static_cast<int>(sizeof(C));
  C* data;
  int packs;
  bool given;

  // The block's threads fill `to` [n]. It can be read after the next barrier.
  __device__ __forceinline__ StagedVector(const NormVector& v, C* to, i64 n)
      : data(to), packs(static_cast<int>(n) / V), given(v.data) {
    if (!given) return;
    const int threads = blockDim.x * blockDim.y;
#pragma unroll 8
    for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < packs * V; i += threads)
      data[(i % V / E * packs + i / V) * E + i % E] = element<C>(v, i);
  }
  // Returns the elements of pack p of a row. If the pack is beyond the end of the row, they are undefined.
  __device__ __forceinline__ void get(int p, C (&to)[V]) const {
    p = min(p, packs - 1);
#pragma unroll
    for (int q = 0; q < V / E; ++q) {
      const auto piece = reinterpret_cast<const Pack<C, E>*>(data)[q * packs + p];
#pragma unroll
      for (int e = 0; e < E; ++e) to[q * E + e] = piece.at[e];
    }
  }
  // Multiply x by the vector, or add the vector to x. If there is no vector, x is unchanged.
  __device__ __forceinline__ void multiply(C (&x)[V], int p) const {
    if (!given) return;
    C v[V];
    get(p, v);
#pragma unroll
    for (int e = 0; e < V; ++e) x[e] *= v[e];
  }
  __device__ __forceinline__ void add(C (&x)[V], int p) const {
    if (!given) return;
    C v[V];
    get(p, v);
#pragma unroll
    for (int e = 0; e < V; ++e) x[e] += v[e];
  }
};

// Normalizes a row: (x − μ)/σ ⊛ w + b. Each thread has a pack x. If `here` is false, it has none.
// sum_of_row(v) returns the sum of v over the row's threads, bitwise identical in all of them. `part` is 1/n.
template <bool centred, class C, int V, class Sum>
__device__ __forceinline__ void normalise_pack(C (&x)[V], const C (&w)[V], const C (&b)[V], bool here, C part,
                                               C eps, Sum&& sum_of_row, C& mu, C& scale) {
  C squares = 0;
  mu = 0;
  if (centred) {
#pragma unroll
    for (const C v : x) mu += v;
    mu = sum_of_row(mu) * part;
  }
#pragma unroll
  for (C& v : x) v -= mu, squares += here ? v * v : C(0);
  scale = C(1) / sqrt(sum_of_row(squares) * part + eps);
#pragma unroll
  for (int e = 0; e < V; ++e) x[e] = x[e] * scale * w[e] + b[e];
}

// Bytes of shared memory for a number of vectors, and the limit for a block.
template <class S>
std::size_t staged_bytes(i64 n, int vectors) {
  return static_cast<std::size_t>(n * vectors) * sizeof(compute_t<S>);
}
inline constexpr std::size_t most_staged = 64 << 10;

}  // namespace tg::cuda
