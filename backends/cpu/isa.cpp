// Which kernel sets were built, and which of them this machine can run.
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "backends/cpu/kernel.h"

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
