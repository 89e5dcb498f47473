// The list of CPU kernels: a file of this folder defines NAME_kernel and has one line here. (Pointwise ops
// are not kernels but rows of the table in pointwise.cpp.)
#pragma once

#include "backends/cpu/kernel.h"

#define TG_CPU_KERNELS(X) \
  X(full)                 \
  X(fused)                \
  X(slice_assign)         \
  X(slice_at)             \
  X(concat)               \
  X(embedding)            \
  X(index_select)         \
  X(index_add)            \
  X(sum)                  \
  X(mean)                 \
  X(sum_squares)          \
  X(prod)                 \
  X(max)                  \
  X(min)                  \
  X(matmul)               \
  X(flash_attn)           \
  X(flash_attn_backward)  \
  X(attention_keep_mask)

namespace tg::cpu::TG_ISA {

#define TG_DECLARE(name) extern const Kernel name##_kernel;
TG_CPU_KERNELS(TG_DECLARE)
#undef TG_DECLARE

extern const std::span<const BlockEntry> pointwise_blocks;  // pointwise.cpp
LoadFn block_load(DType memory, DType block);               // convert.cpp
StoreFn block_store(DType block, DType memory);

}  // namespace tg::cpu::TG_ISA
