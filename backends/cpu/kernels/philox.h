// The Philox generator of core/base/rng.h on vectors: one counter per lane, and the words for the elements of
// a tensor.
#pragma once

#include <utility>

#include <tilegrad/core/base/rng.h>
#include "backends/cpu/kernels/simd.h"

namespace tg::cpu::TG_ISA {

// The 64-bit products of each lane with m, as high and low words.
TG_INLINE void multiply_words(U32 a, std::uint32_t m, U32& high, U32& low) {
#if TG_VECTOR_BYTES == 64
  const __m512i f = _mm512_set1_epi32(static_cast<int>(m));
  const __m512i even = _mm512_mul_epu32((__m512i)a, f),
                odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), f);
  high = (U32)_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
  low = (U32)_mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
#elif TG_VECTOR_BYTES == 32
  const __m256i f = _mm256_set1_epi32(static_cast<int>(m));
  const __m256i even = _mm256_mul_epu32((__m256i)a, f),
                odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), f);
  high = (U32)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  low = (U32)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
#else
  for (int i = 0; i < lanes<U32>; ++i) {
    const std::uint64_t p = std::uint64_t{a[i]} * m;
    high[i] = static_cast<std::uint32_t>(p >> 32), low[i] = static_cast<std::uint32_t>(p);
  }
#endif
}

// philox() of core/base/rng.h, with one counter per lane.
TG_INLINE void philox_lanes(U32 c[4], std::uint64_t key) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < philox_rounds; ++round) {
    U32 h0, l0, h1, l1;
    multiply_words(c[0], philox_multiplier[0], h0, l0);
    multiply_words(c[2], philox_multiplier[1], h1, l1);
    c[0] = h1 ^ c[1] ^ k0, c[1] = l1;
    c[2] = h0 ^ c[3] ^ k1, c[3] = l0;
    k0 += philox_increment[0], k1 += philox_increment[1];
  }
}

// Returns a[0], b[0], a[1], b[1], … from the lower or the upper halves of a and b.
template <int first, int... i>
TG_INLINE U32 interleave(U32 a, U32 b, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(a, b, (first + i / 2 + i % 2 * lanes<U32>)...);
}

// Writes words 0 … 3 of blocks first … first + lanes - 1 of an elementwise random op (element_counter), in
// order: to[4·lanes].
TG_INLINE void element_words(std::uint64_t first, std::uint64_t key, std::uint32_t* to) {
  constexpr int W = lanes<U32>;
  constexpr auto all = std::make_integer_sequence<int, W>();
  U32 lane;
  for (int i = 0; i < W; ++i) lane[i] = static_cast<std::uint32_t>(i);
  const PhiloxBlock start = element_counter(first);
  const U32 low = lane + start[0], carry = (U32)(low < lane);  // all ones if the lower word wrapped
  U32 c[4] = {low, U32{} + start[1] - carry, U32{}, U32{}};
  philox_lanes(c, key);
  const U32 even[2] = {interleave<0>(c[0], c[2], all), interleave<W / 2>(c[0], c[2], all)};
  const U32 odd[2] = {interleave<0>(c[1], c[3], all), interleave<W / 2>(c[1], c[3], all)};
  for (int half = 0; half < 2; ++half) {
    store(to + half * 2 * W, interleave<0>(even[half], odd[half], all));
    store(to + half * 2 * W + W, interleave<W / 2>(even[half], odd[half], all));
  }
}

}  // namespace tg::cpu::TG_ISA
