#include "backends/cuda/kernels/set_memory.h"

#include "backends/cuda/kernels/elements.cuh"

namespace tg::cuda {

namespace {

__global__ void __launch_bounds__(SetMemory::threads) set_memory(const __grid_constant__ SetMemory m) {
  const std::size_t bytes = m.row_bytes * m.rows, step = std::size_t{gridDim.x} * SetMemory::threads,
                    first = std::size_t{blockIdx.x} * SetMemory::threads + threadIdx.x;
  const unsigned word = m.element == 4   ? m.value
                        : m.element == 2 ? (m.value & 0xffff) * 0x10001u
                                         : (m.value & 0xff) * 0x1010101u;
  if (m.rows == 1 && reinterpret_cast<unsigned long long>(m.to) % 16 == 0 && bytes % 16 == 0) {
    for (std::size_t i = first; i < bytes / 16; i += step)
      reinterpret_cast<uint4*>(m.to)[i] = {word, word, word, word};
    return;
  }
  for (std::size_t i = first; i < bytes; i += step)
    m.to[i / m.row_bytes * m.pitch + i % m.row_bytes] =
        static_cast<unsigned char>(word >> (i % m.row_bytes % m.element * 8));
}

}  // namespace

void* set_memory_kernel() {
  return reinterpret_cast<void*>(&set_memory);
}

}  // namespace tg::cuda
