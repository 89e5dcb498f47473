#include "backends/cuda/check.h"

#include "core/error.h"

namespace tg::cuda {

void check(cudaError_t status, const std::string& what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // so that the next call does not report it again
  const std::string why = "[cuda] " + what + ": " + cudaGetErrorString(status);
  if (status == cudaErrorMemoryAllocation) throw OutOfMemory(why);
  throw DeviceError(why);
}

}  // namespace tg::cuda
