// Included by every file of CPU kernels: the interface of a kernel, and the functions that the files of an
// instruction set share.
#pragma once

#include "backends/cpu/kernel.h"

namespace tg::cpu::TG_ISA {

extern const std::span<const BlockEntry> pointwise_blocks;  // pointwise.cpp
LoadFn block_load(DType memory, DType block);               // convert.cpp
StoreFn block_store(DType block, DType memory);

}  // namespace tg::cpu::TG_ISA
