// f32 operands of attention on tensor cores, as numbers of 16 bits: x·2ᵉ rounded to f16, which has the 10
// bits of fraction of TF32 and is multiplied twice as fast, or x·2ᵉ = high + low, three products with the
// error of f32 (terms.cuh). e is one for each operand and key head, such that the longest of its rows
// is not longer than 2¹⁴. Numbers down to 2⁻²⁸ of that keep all bits in one term, and in two terms what is
// lost of a number is below 2⁻²² of it or 2⁻³⁸ of the longest row, whichever is more.
#pragma once

#include "backends/cuda/attention/score.cuh"
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/tile/terms.cuh"

namespace tg::cuda {

// Of a key head and its query heads: q holds q·2^q, and so on.
struct Powers {
  int q, k, v, z_o;
  int z_a;  // z_A ⋅ 2^(room_for_z_a + z_o + v + z_a) is multiplied, and P ⋅ 2^room_for_p
  // P is at most 1 for the ξ of these scores, but flash_attn_backward takes any ξ: f16 holds P to 2⁸, and z_A
  // to 2⁶ times its bound for such a P.
  static constexpr int longest = 14, room_for_p = 8, room_for_z_a = 10;
};

// The operands of a call in the workspace.
struct Halves {
  struct Operand {
    Attention::Operand from;
    __half* to = nullptr;      // [B, heads, rows, terms·width]
    int2* greatest = nullptr;  // [B, heads, chunks]: k with 2ᵏ above the length of each row, and above |z_ξ|
    int heads = 0, rows = 0, size = 0;
    bool keys = false;
    __host__ __device__ int chunks() const { return (rows + chunk - 1) / chunk; }
    __host__ __device__ i64 blocks(int batch) const { return i64(batch) * heads * chunks(); }
  };
  static constexpr int chunk = 128;  // rows of a block
  int terms, width;                  // 1 or 2; of heads, padded
  int count = 3;
  Operand operand[4];  // q, k, v, z_o
  Powers* powers;      // [B, Hk]
  std::size_t bytes = 0;

  Halves(const Attention& x, bool backward, std::byte* base);
  // The same call of operands that are here.
  Attention in_place_of(Attention x) const;
};

void launch_halves(const Stream& s, const Attention& x, const Halves& halves);

namespace attn {

// Calls f with the padded head size as a constant.
template <class F>
void with_width(const Attention& x, F&& f) {
  const int most = x.d > x.dv ? x.d : x.dv;
  most <= 32   ? f(std::integral_constant<int, 32>())
  : most <= 64 ? f(std::integral_constant<int, 64>())
               : f(std::integral_constant<int, 128>());
}

#if defined(__CUDACC__)
// 2ᵉ, of e outside −126 … 127 the nearest that f32 has.
__device__ __forceinline__ float power_of_two(int e) {
  return __int_as_float((min(max(e, -126), 127) + 127) << 23);
}
// sums ⋅ factor ⋅ 2ᵉ
template <int Parts>
__device__ __forceinline__ void scale(tiles::Sums<Parts>& sums, float factor, int e) {
  const float first = factor * power_of_two(e / 2), second = power_of_two(e - e / 2);
#pragma unroll
  for (auto& part : sums.x)
#pragma unroll
    for (float& x : part) x = x * first * second;
}
#endif

}  // namespace attn
}  // namespace tg::cuda
