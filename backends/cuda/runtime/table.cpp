#include "backends/cuda/runtime/table.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "backends/cuda/runtime/check.h"

namespace tg::cuda {

namespace {

std::shared_ptr<void> memory(std::size_t count) {
  void* p = nullptr;
  check(cudaMalloc(&p, std::max<std::size_t>(count, 1)), "memory for a kernel's table");
  return {p, [](void* q) { cudaFree(q); }};
}

// Programs run on another stream than such copies.
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

}  // namespace tg::cuda
