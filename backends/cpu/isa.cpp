// The kernel sets in this build, the sets that this machine can run, and the unit that multiplies bf16 on it.
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "backends/cpu/kernel.h"
#include "core/os/system.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tg::cpu {

#define TG_SET(isa)           \
  namespace isa {             \
  extern const KernelSet set; \
  }
#ifdef TILEGRAD_ISA_baseline
TG_SET(baseline)
#endif
#ifdef TILEGRAD_ISA_avx2
TG_SET(avx2)
#endif
#ifdef TILEGRAD_ISA_avx512
TG_SET(avx512)
#endif

std::span<const KernelSet* const> runnable_sets() {
  static const auto& sets = *new auto([] {
    std::vector<const KernelSet*> s;
#ifdef TILEGRAD_ISA_baseline
    s.push_back(&baseline::set);
#endif
#ifdef TILEGRAD_ISA_avx2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
      s.push_back(&avx2::set);
#endif
#ifdef TILEGRAD_ISA_avx512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512cd"))
      s.push_back(&avx512::set);
#endif
    return s;
  }());
  return sets;
}

const KernelSet& kernel_set() {
  static const KernelSet& chosen = []() -> const KernelSet& {
    if (runnable_sets().empty())
      throw DeviceError(
          "[cpu] this machine supports none of the instruction sets that tilegrad was built for "
          "(TILEGRAD_CPU_ISAS)");
    const char* requested = std::getenv("TG_ISA");
    if (!requested) return *runnable_sets().back();
    std::string known;
    for (const KernelSet* s : runnable_sets()) {
      if (s->isa == requested) return *s;
      known += (known.empty() ? "" : ", ") + std::string(s->isa);
    }
    throw DeviceError("[cpu] TG_ISA is '" + std::string(requested) +
                      "': expected one that this machine supports, " + known);
  }();
  return chosen;
}

// The processor model determines the bf16 unit. A measurement might select different units in different runs,
// and results would then not be bitwise identical.
namespace {

#if defined(__x86_64__)
// Returns true if three conditions hold. The processor has these instructions and avx512_bf16, which is used
// for rounding. The system saves the tile registers. The system permits this process, with all its threads,
// to use them.
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

namespace {
struct UserKernels {
  std::mutex mutex;
  std::map<std::string, Kernel, std::less<>> by_op;
};
UserKernels& user_kernels() {
  static auto& kernels = *new UserKernels;
  return kernels;
}
}  // namespace

void register_kernel(std::string op, Kernel kernel) {
  UserKernels& users = user_kernels();
  const std::lock_guard lock(users.mutex);
  users.by_op[std::move(op)] = kernel;
}

const Kernel* find_kernel(std::string_view op) {
  UserKernels& users = user_kernels();
  {
    const std::lock_guard lock(users.mutex);
    if (const auto it = users.by_op.find(op); it != users.by_op.end()) return &it->second;
  }
  for (const KernelEntry& e : kernel_set().kernels)
    if (e.op == op) return e.kernel;
  return nullptr;
}

}  // namespace tg::cpu
