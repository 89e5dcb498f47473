#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// The list of CUDA kernels. A file in kernels/, attention/ or this folder defines NAME_kernel.
// clang-format off
#define TG_CUDA_KERNELS(X) \
  X(fused) X(fused_reduction) X(full) X(matmul) X(matmul_in_units) \
  X(sum) X(mean) X(sum_squares) X(prod) X(max) X(min) X(argmax) X(argmin) \
  X(softmax) X(softmax_backward) X(log_softmax) X(log_softmax_backward) X(logsumexp) \
  X(cumsum) X(top_k) X(sample) \
  X(layer_norm) X(layer_norm_backward) X(rms_norm) X(rms_norm_backward) \
  X(cross_entropy) X(cross_entropy_backward) X(linear_cross_entropy) X(adamw) X(squared_norm) X(global_norm) X(block_norms) \
  X(embedding) X(index_select) X(gather) X(index_add) X(index_assign) X(scatter_add) \
  X(concat) X(slice_assign) X(slice_at) X(arange) X(rope) \
  X(dropout) X(uniform) X(normal) X(bernoulli) X(randint) X(attention_keep_mask) \
  X(flash_attn) X(flash_attn_backward) X(paged_attn)
// clang-format on

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
