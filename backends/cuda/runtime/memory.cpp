#include "backends/cuda/runtime/memory.h"

#include <algorithm>
#include <string>

#include <tilegrad/core/base/error.h>
#include "backends/cuda/runtime/check.h"

namespace tg::cuda {

namespace {

std::shared_ptr<void> memory(std::size_t count) {
  void* p = nullptr;
  check(cudaMalloc(&p, std::max<std::size_t>(count, 1)), "memory for a kernel's table");
  return {p, [](void* q) { cudaFree(q); }};
}

// The copy must be complete on return, because programs run on a different stream.
void wait() {
  check(cudaStreamSynchronize(nullptr), "a kernel's table");
}

}  // namespace

std::shared_ptr<void> on_device(const void* bytes, std::size_t count) {
  std::shared_ptr<void> p = memory(count);
  if (count > 0) check(cudaMemcpy(p.get(), bytes, count, cudaMemcpyHostToDevice), "a kernel's table");
  wait();
  return p;
}

std::shared_ptr<void> zeros_on_device(std::size_t count) {
  std::shared_ptr<void> p = memory(count);
  check(cudaMemset(p.get(), 0, count), "a kernel's table");
  wait();
  return p;
}

std::byte* pinned_memory(std::size_t bytes, std::string_view what) {
  void* p = nullptr;
  const cudaError_t status = cudaMallocHost(&p, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw OutOfMemory("[cuda] no pinned host memory for " + std::string(what) + ": " + std::to_string(bytes) +
                      " bytes needed");
  }
  check(status, what);
  return static_cast<std::byte*>(p);
}

ScratchMemory::ScratchMemory(std::size_t bytes) {
  if (bytes > 0 && cudaMalloc(&data_, bytes) != cudaSuccess) {
    data_ = nullptr;
    cudaGetLastError();
  }
}

}  // namespace tg::cuda
