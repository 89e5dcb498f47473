#include "backends/cuda/kernels/kernels.h"

namespace tg::cuda {

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
