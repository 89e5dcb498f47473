// The list of CPU kernels, and the table of this instruction set. A file of this folder defines NAME_kernel.
// Elementwise ops are not kernels. They are rows of the table in pointwise.cpp.
#include "backends/cpu/kernels/kernels.h"

// clang-format off
#define TG_CPU_KERNELS(X) \
  X(full) X(fused) \
  X(slice_assign) X(slice_at) X(concat) X(embedding) X(index_select) X(index_add) X(index_assign) \
  X(gather) X(scatter_add) X(top_k) X(sample) X(cumsum) X(arange) \
  X(sum) X(mean) X(sum_squares) X(prod) X(max) X(min) \
  X(argmax) X(argmin) \
  X(softmax) X(softmax_backward) X(log_softmax) X(log_softmax_backward) X(logsumexp) \
  X(layer_norm) X(layer_norm_backward) X(rms_norm) X(rms_norm_backward) \
  X(cross_entropy) X(cross_entropy_backward) X(linear_cross_entropy) \
  X(rope) \
  X(dropout) X(uniform) X(normal) X(bernoulli) X(randint) \
  X(adamw) X(squared_norm) X(global_norm) X(block_norms) \
  X(matmul) X(matmul_in_units) \
  X(flash_attn) X(flash_attn_backward) X(attention_keep_mask) X(paged_attn) \
  X(all_reduce) X(all_gather) X(reduce_scatter) X(all_to_all) X(ppermute) X(local_shard)
// clang-format on

namespace tg::cpu::TG_ISA {

// The collectives of backends/cpu/ranks.cpp. All instruction sets share them, because none would make them
// faster.
extern const Kernel all_reduce_kernel{.run = &cpu::all_reduce, .on_caller = true},
    all_gather_kernel{.run = &cpu::all_gather, .on_caller = true},
    reduce_scatter_kernel{.run = &cpu::reduce_scatter, .on_caller = true},
    all_to_all_kernel{.run = &cpu::all_to_all, .on_caller = true},
    ppermute_kernel{.run = &cpu::ppermute, .on_caller = true},
    local_shard_kernel{.run = &cpu::local_shard, .on_caller = true};

#define TG_DECLARE(name) extern const Kernel name##_kernel;
TG_CPU_KERNELS(TG_DECLARE)
#undef TG_DECLARE

#define TG_TEXT2(x) #x
#define TG_TEXT(x) TG_TEXT2(x)
#define TG_ROW(name) {#name, &name##_kernel},

static constexpr KernelEntry kernels[] = {TG_CPU_KERNELS(TG_ROW)};

// Must be constant-initialized. Dynamic initialization would execute code before main(), also on processors
// without this instruction set.
extern const KernelSet set;
constinit const KernelSet set{TG_TEXT(TG_ISA), kernels, &pointwise_blocks, &block_load, &block_store};

}  // namespace tg::cpu::TG_ISA
