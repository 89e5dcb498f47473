// Conversions of 16-bit types for the run-time compiler. Each is one instruction. A 16-bit value is stored as
// an unsigned short. Results are rounded to nearest even. tests/gpu_emulator has a version of this file in
// plain C++.
#pragma once

namespace tg::cuda {

inline constexpr const char* conversion_source = R"(
__device__ float float_of_f16(unsigned short x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
__device__ unsigned short f16_of(float x) {
  unsigned short y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
__device__ unsigned short bf16_of(float x) {
  unsigned short y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
)";

}  // namespace tg::cuda
