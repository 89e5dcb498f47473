// Copies the results of a run to pinned host memory, in the stream's order, and records an event after them.
#pragma once

#include <tilegrad/core/run/backend.h>
#include "backends/cuda/runtime/fault.h"

#include <cuda_runtime_api.h>

namespace tg::cuda {

class CudaExecutable;

class CudaTransfer final : public Transfer {
 public:
  CudaTransfer() = default;
  ~CudaTransfer() override;
  CudaTransfer(const CudaTransfer&) = delete;
  CudaTransfer& operator=(const CudaTransfer&) = delete;

  // memory.results begins with the program's fault. The fault is always copied. Ranges within memory.results
  // are part of the same copy.
  void start(CudaExecutable& program, std::span<const Piece> pieces, const ProgramMemory& memory,
             cudaStream_t stream, int epoch);
  bool done() override;
  void wait() override;

 private:
  CudaExecutable* program_ = nullptr;
  std::byte* memory_ = nullptr;  // pinned
  std::size_t capacity_ = 0;
  cudaEvent_t event_ = nullptr;
  bool arrived_ = false;
  int epoch_ = 0;
};

}  // namespace tg::cuda
