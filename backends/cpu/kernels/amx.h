// AMX tiles, with the interface that gemm_tiles.h requires. Accumulators are f32. Each addition rounds to
// nearest even. Denormals are treated as zeros. The AMX instructions are inline assembly, because the avx512
// kernels are compiled without AMX.
#pragma once

#include "backends/cpu/kernels/micro.h"

#if defined(TG_BF16_TILES)
namespace tg::cpu::TG_ISA {

struct Amx {
  // Switching away from a thread with configured tiles is expensive, so release the tiles after use.
  static void configure() {
    struct alignas(64) Config {
      std::uint8_t palette, start_row, reserved[14];
      std::uint16_t row_bytes[16];
      std::uint8_t rows[16];
    };
    static_assert(sizeof(Config) == 64);
    static constexpr Config config{
        1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  static void release() { asm volatile("tilerelease"); }
  template <int T>
  TG_INLINE static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  template <int T>
  TG_INLINE static void load(const float* from, i64 row_bytes) {
    asm volatile("tileloadd (%0,%1), %%tmm%c2" ::"r"(from), "r"(row_bytes), "i"(T) : "memory");
  }
  template <int T>
  TG_INLINE static void store(float* to, i64 row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1)" ::"r"(to), "r"(row_bytes), "i"(T) : "memory");
  }
  template <int C, int A, int B>
  TG_INLINE static void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
  // Returns one pair of rounded numbers in every second lane. Rounds as round_row() does.
  TG_INLINE static F32 round_pairs(F32 first, F32 second) {
    U32 both;
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(both) : "v"(first), "v"(second));
    const __m512i halves = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                            7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return (F32)_mm512_permutexvar_epi16(halves, (__m512i)both);
  }
  TG_INLINE static void round_row(bfloat16* to, const float* from) {  // to nearest even
    U32 both;
    asm("vcvtne2ps2bf16 %1, %2, %0"
        : "=v"(both)
        : "v"(tg::cpu::TG_ISA::load(from)), "v"(tg::cpu::TG_ISA::load(from + 16)));
    TG_ISA::store(reinterpret_cast<std::uint32_t*>(to), both);
  }
};

}  // namespace tg::cpu::TG_ISA
#endif
