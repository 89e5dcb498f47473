// Chooses the bf16 unit by the kind of processor and not by a measurement, so that a machine always gives the
// same bits.
#include "backends/cpu/bf16_unit.h"

#include <cstdlib>

#include "core/os/system.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tg::cpu {

namespace {

#if defined(__x86_64__)
// True if the processor has the instructions (and those of avx512_bf16, for rounding), the system saves the
// tile registers, and the system permits this process to use them. Permission holds for all threads of the
// process.
bool request_tiles() {
  if (!__builtin_cpu_supports("avx512bf16")) return false;
  unsigned eax, ebx, ecx, edx;
  constexpr unsigned amx = 1u << 22 | 1u << 24;  // AMX-BF16 and AMX-TILE
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & amx) != amx) return false;
  constexpr unsigned os_xsave = 1u << 27;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & os_xsave) == 0) return false;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned tile_state = 3u << 17;  // configuration and data
  if ((low & tile_state) != tile_state) return false;
  return os::permit_tile_registers();
}
#endif

}  // namespace

bool has_bf16_tiles() {
#if defined(__x86_64__)
  static const bool has = request_tiles();
  return has;
#else
  return false;
#endif
}

Bf16Unit bf16_unit() {
  static const Bf16Unit unit = [] {
    if (!std::getenv("TG_ISA") && has_bf16_tiles()) return Bf16Unit::tiles;
#if defined(__x86_64__)
    // The dot product of pairs runs at twice the f32 rate on AMD since Zen 4, but at half of it on Intel
    // Xeons.
    if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd")) return Bf16Unit::pairs;
#endif
    return Bf16Unit::f32;
  }();
  return unit;
}

}  // namespace tg::cpu
