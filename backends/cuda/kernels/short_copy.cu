#include "backends/cuda/kernels/short_copy.h"

#include "backends/cuda/kernels/launch.cuh"

namespace tg::cuda {

namespace {

constexpr unsigned short_copy_threads = 256;
constexpr std::size_t longest_short_copy = std::size_t{64} << 10;
// Of so few bytes the driver makes a copy that is faster than a kernel.
constexpr std::size_t shortest_to_gpu = std::size_t{1} << 10;

// `bytes` in pieces of 16; the bytes after them are copied one by one.
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

}  // namespace

cudaError_t copy_to_gpu(std::byte* to, const std::byte* host, std::size_t bytes, cudaStream_t stream) {
  if (bytes > shortest_to_gpu && is_short(to, host, bytes)) return copy_by_kernel(to, host, bytes, stream);
  return cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream);
}

cudaError_t copy_to_host(std::byte* host, const std::byte* from, std::size_t bytes, cudaStream_t stream) {
  if (is_short(host, from, bytes)) return copy_by_kernel(host, from, bytes, stream);
  return cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream);
}

}  // namespace tg::cuda
