#include "backends/cuda/runtime/stopwatch.h"

#include <algorithm>
#include <limits>

#include "backends/cuda/runtime/check.h"

namespace tg::cuda {

ScratchMemory::ScratchMemory(std::size_t bytes) {
  if (bytes > 0 && cudaMalloc(&data_, bytes) != cudaSuccess) {
    data_ = nullptr;
    cudaGetLastError();
  }
}

Stopwatch::Stopwatch() {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
  check(cudaEventCreate(&start_), "an event");
  check(cudaEventCreate(&end_), "an event");
}

Stopwatch::~Stopwatch() {
  if (start_) cudaEventDestroy(start_);
  if (end_) cudaEventDestroy(end_);
  if (stream_) cudaStreamDestroy(stream_);
}

float Stopwatch::time(const std::function<void()>& launch, float best) const {
  float least = std::numeric_limits<float>::infinity();
  for (int round = 0; round < 3; ++round) {
    cudaEventRecord(start_, stream_);
    for (int i = 0; i < 3; ++i) launch();
    cudaEventRecord(end_, stream_);
    float ms = 0;
    if (cudaEventSynchronize(end_) != cudaSuccess || cudaEventElapsedTime(&ms, start_, end_) != cudaSuccess)
      break;
    least = std::min(least, ms), best = std::min(best, ms);
    if (ms > 1.2f * best) break;
  }
  return least;
}

}  // namespace tg::cuda
