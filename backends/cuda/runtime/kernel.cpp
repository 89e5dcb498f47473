#include "backends/cuda/runtime/kernel.h"

#include "backends/cuda/fusion/sums_left.h"
#include "backends/cuda/kernels/list.h"

namespace tg::cuda {

#define TG_DECLARE(name) extern const Kernel name##_kernel;
TG_CUDA_KERNELS(TG_DECLARE)
#undef TG_DECLARE

namespace {

struct UnplannedKernel final : KernelPlan {
  UnplannedKernel(Kernel::Launch* l, Kernel::Workspace* w) : launch_(l), workspace_(w) {}
  void launch(const Stream& s, const Call& c) const override { launch_(s, c); }
  std::size_t workspace(const Call& c) const override { return workspace_ ? workspace_(c) : 0; }

 private:
  Kernel::Launch* launch_;
  Kernel::Workspace* workspace_;
};

}  // namespace

std::vector<SumLeft> KernelPlan::sums_left(const Call&) const {
  return {};
}

PlanPtr Kernel::plan(const Call& call) const {
  return planner_ ? planner_(call) : std::make_unique<UnplannedKernel>(launch_, workspace_);
}

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
