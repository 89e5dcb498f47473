// Shared by the kernels of layer_norm and rms_norm.
#pragma once

#include "backends/cuda/kernels/rows.cuh"
#include "ops/norm.h"

namespace tg::cuda {

// weight or bias [n], of a dtype and step of its own; data is null if there is none.
struct NormVector {
  const void* data = nullptr;
  DType type = DType::f32;
  i64 step = 0;
  bool in_packs = false;  // of `rows`' dtype, one after the other and aligned to 16 bytes

  NormVector() = default;
  NormVector(const Arg& a, DType rows)
      : data(a.data),
        type(a.dtype),
        step(a.layout.strides[0]),
        in_packs(type == rows && step == 1 && reinterpret_cast<std::uintptr_t>(data) % 16 == 0) {}
};

// Its elements i … i + V − 1, of rows that are held; `none` if there is no vector.
template <class S, class C, int V>
__device__ __forceinline__ void load_pack(C (&to)[V], const NormVector& v, i64 i, C none) {
  if (v.in_packs)
    return unpack(reinterpret_cast<const Words<S, V>*>(static_cast<const S*>(v.data) + i)[0], to);
#pragma unroll
  for (int e = 0; e < V; ++e) to[e] = v.data ? load_as<C>(v.data, v.type, (i + e) * v.step) : none;
}

// Its element i, of rows that are not held.
template <class C>
__device__ __forceinline__ C element(const NormVector& v, i64 i) {
  return load_as<C>(v.data, v.type, i * v.step);
}

// The vector in shared memory, because registers limit the number of rows that a multiprocessor has in
// flight. It is stored in packs of V, each in pieces of 16 bytes: all first pieces, then all second ones, so
// that lanes that read neighbouring packs have no bank conflicts.
template <class C, int V>
struct StagedVector {
  static constexpr int E = 16 / static_cast<int>(sizeof(C));
  C* data;
  int packs;
  bool given;

  // The block's threads fill `to` [n]; it can be read after the next barrier.
  __device__ __forceinline__ StagedVector(const NormVector& v, C* to, i64 n)
      : data(to), packs(static_cast<int>(n) / V), given(v.data) {
    if (!given) return;
    const int threads = blockDim.x * blockDim.y;
#pragma unroll 8
    for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < packs * V; i += threads)
      data[(i % V / E * packs + i / V) * E + i % E] = element<C>(v, i);
  }
  // The elements that belong to pack p of a row; anything for packs beyond its end.
  __device__ __forceinline__ void get(int p, C (&to)[V]) const {
    p = min(p, packs - 1);
#pragma unroll
    for (int q = 0; q < V / E; ++q) {
      const auto piece = reinterpret_cast<const Pack<C, E>*>(data)[q * packs + p];
#pragma unroll
      for (int e = 0; e < E; ++e) to[q * E + e] = piece.at[e];
    }
  }
  // x ⊛ the vector, x + the vector; x itself if there is none.
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

// Normalises a row of which each thread has a pack x, or none of it (!here): (x − μ)/σ ⊛ w + b. sum_of_row(v)
// is the sum of v over the row's threads, the same bits for all of them. `part` is 1/n.
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

// Bytes of shared memory of that many vectors, and the most that a block may use for them.
template <class S>
std::size_t staged_bytes(i64 n, int vectors) {
  return static_cast<std::size_t>(n * vectors) * sizeof(compute_t<S>);
}
inline constexpr std::size_t most_staged = 64 << 10;

}  // namespace tg::cuda
