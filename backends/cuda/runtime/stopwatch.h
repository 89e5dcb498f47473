// Times launches, in memory of their own, to choose the fastest of several kernels for a step.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace tg::cuda {

// Memory for a measurement; null for no bytes, and if the GPU has not as many.
class ScratchMemory {
 public:
  explicit ScratchMemory(std::size_t bytes);
  ~ScratchMemory() { cudaFree(data_); }
  ScratchMemory(const ScratchMemory&) = delete;
  ScratchMemory& operator=(const ScratchMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

class Stopwatch {
 public:
  Stopwatch();
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  cudaStream_t stream() const { return stream_; }  // that of the launches
  // The shortest of three rounds of three launches, in ms; it ends after a round that took 1.2 times `best`.
  // Infinity if they failed.
  float time(const std::function<void()>& launch, float best) const;

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

}  // namespace tg::cuda
