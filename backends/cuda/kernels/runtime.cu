// Kernels of the runtime: memory fills, short copies, and a kernel that records an exception of a host
// function as a fault of the program. After a fault, parameters are not modified.
#include "backends/cuda/kernels/runtime.h"

#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/runtime/host_kernel.h"

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

constexpr unsigned short_copy_threads = 256;
constexpr std::size_t longest_short_copy = std::size_t{64} << 10;
// For fewer bytes, the driver's copy is faster than a kernel.
constexpr std::size_t shortest_to_gpu = std::size_t{1} << 10;

// Copies `bytes` in pieces of 16. The remaining bytes are copied individually.
__global__ void __launch_bounds__(short_copy_threads)
    short_copy(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  const std::size_t i = std::size_t{blockIdx.x} * short_copy_threads + threadIdx.x, pieces = bytes / 16;
  if (i < pieces)
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  else if (const std::size_t at = 16 * pieces + (i - pieces); at < bytes)
    to[at] = from[at];
}

cudaError_t copy_by_kernel(std::byte* to, const std::byte* from, std::size_t bytes, cudaStream_t stream) {
  const std::size_t threads = bytes / 16 + bytes % 16;
  const auto blocks = static_cast<unsigned>((threads + short_copy_threads - 1) / short_copy_threads);
  auto* target = reinterpret_cast<unsigned char*>(to);
  const auto* source = reinterpret_cast<const unsigned char*>(from);
  void* arguments[] = {&target, &source, &bytes};
  return cudaLaunchKernel(short_copy, dim3(blocks), dim3(short_copy_threads), arguments, 0, stream);
}

bool is_short(const std::byte* to, const std::byte* from, std::size_t bytes) {
  return bytes > 0 && bytes <= longest_short_copy && reinterpret_cast<std::uintptr_t>(to) % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(from) % 16 == 0;
}

__global__ void note(const volatile int* threw, Faults faults) {
  begin_early();
  if (*threw != 0) faults.check_index(-1, 0, Fault::thrown);
}

}  // namespace

void* set_memory_kernel() {
  return reinterpret_cast<void*>(&set_memory);
}

cudaError_t copy_to_gpu(std::byte* to, const std::byte* host, std::size_t bytes, cudaStream_t stream) {
  if (bytes > shortest_to_gpu && is_short(to, host, bytes)) return copy_by_kernel(to, host, bytes, stream);
  return cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream);
}

cudaError_t copy_to_host(std::byte* host, const std::byte* from, std::size_t bytes, cudaStream_t stream) {
  if (is_short(host, from, bytes)) return copy_by_kernel(host, from, bytes, stream);
  return cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream);
}

void note_thrown(const Stream& s, const int* threw) {
  launch_early(s, {1, 1}, note, threw, s.faults);
}

}  // namespace tg::cuda
