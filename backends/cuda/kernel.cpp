#include "backends/cuda/kernel.h"

#include "backends/cuda/kernels/list.h"

namespace tg::cuda {

#define TG_DECLARE(name) extern const Kernel name##_kernel;
TG_CUDA_KERNELS(TG_DECLARE)
#undef TG_DECLARE

const Kernel* find_kernel(std::string_view op) {
  struct Entry {
    std::string_view op;
    const Kernel* kernel;
  };
#define TG_ENTRY(name) {#name, &name##_kernel},
  static const Entry table[] = {TG_CUDA_KERNELS(TG_ENTRY)};
#undef TG_ENTRY
  for (const Entry& e : table)
    if (e.op == op) return e.kernel;
  return nullptr;
}

}  // namespace tg::cuda
