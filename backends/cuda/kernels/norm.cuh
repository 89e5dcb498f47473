// What the kernels of layer_norm and rms_norm share.
#pragma once

#include "backends/cuda/kernels/rows.cuh"
#include "ops/norm.h"

namespace tg::cuda {

// weight or bias [n], of a dtype and step of its own; data is null if there is none.
struct NormVector {
  const void* data = nullptr;
  DType type = DType::f32;
  i64 step = 0;

  NormVector() = default;
  explicit NormVector(const Arg& a) : data(a.data), type(a.dtype), step(a.layout.strides[0]) {}
};

// Its elements as a thread needs them: those of its slots in registers for rows that are held, else none.
template <class C, class Row>
struct NormValues {
  const NormVector& from;
  C held[Row::slots];

  template <class T>
  __device__ __forceinline__ NormValues(const NormVector& v, const T& team, i64 n, int pack) : from(v) {
    if constexpr (Row::held) {
#pragma unroll
      for (int slot = 0; slot < Row::slots; ++slot) {
        const i64 i = (team.rank + i64(slot / pack) * team.size) * pack + slot % pack;
        held[slot] = v.data && i < n ? load_as<C>(v.data, v.type, i * v.step) : C(0);
      }
    }
  }
  __device__ __forceinline__ C at(i64 i, int slot) const {
    if constexpr (Row::held)
      return held[slot];
    else
      return load_as<C>(from.data, from.type, i * from.step);
  }
};

// Elements of a row that a thread holds in registers.
inline constexpr int norm_slots = 16;
template <class S>
inline constexpr int norm_packs = norm_slots / pack_of<S>;

}  // namespace tg::cuda
