// Which processors run bf16 dot products faster than f32 multiply-adds. By vendor and not by a measurement,
// so that a machine always gives the same bits.
#include "backends/cpu/kernels/gemm.h"

namespace tg::cpu {

bool bf16_dot_pays() {
#if defined(__x86_64__)
  static const bool pays = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd");
  return pays;
#else
  return false;
#endif
}

}  // namespace tg::cpu
