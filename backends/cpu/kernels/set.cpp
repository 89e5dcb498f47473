// The list of CPU kernels, and the table of this instruction set's. NAME_kernel is defined in a file of this
// folder. (Pointwise ops are not kernels but rows of the table in pointwise.cpp.)
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
  X(sum_ranks) X(gather_ranks) X(scatter_sum) X(exchange_ranks) X(shift_ranks) X(own_piece)
// clang-format on

namespace tg::cpu::TG_ISA {

// The ops in which ranks exchange data, which no instruction set makes faster (backends/cpu/ranks.cpp).
extern const Kernel sum_ranks_kernel{.run = &cpu::sum_ranks, .on_caller = true},
    gather_ranks_kernel{.run = &cpu::gather_ranks, .on_caller = true},
    scatter_sum_kernel{.run = &cpu::scatter_sum, .on_caller = true},
    exchange_ranks_kernel{.run = &cpu::exchange_ranks, .on_caller = true},
    shift_ranks_kernel{.run = &cpu::shift_ranks, .on_caller = true},
    own_piece_kernel{.run = &cpu::own_piece, .on_caller = true};

#define TG_DECLARE(name) extern const Kernel name##_kernel;
TG_CPU_KERNELS(TG_DECLARE)
#undef TG_DECLARE

#define TG_TEXT2(x) #x
#define TG_TEXT(x) TG_TEXT2(x)
#define TG_ROW(name) {#name, &name##_kernel},

static constexpr KernelEntry kernels[] = {TG_CPU_KERNELS(TG_ROW)};

// Constant-initialised: code that initialises it would run before main() on processors without the
// instruction set.
extern const KernelSet set;
constinit const KernelSet set{TG_TEXT(TG_ISA), kernels, &pointwise_blocks, &block_load, &block_store};

}  // namespace tg::cpu::TG_ISA
