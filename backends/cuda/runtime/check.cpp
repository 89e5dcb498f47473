#include "backends/cuda/runtime/check.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>

#include <tilegrad/core/base/error.h>

namespace tg::cuda {

namespace {

// Errors of a kernel that failed at run time. CUDA returns such an error from every later call.
constexpr cudaError_t sticky[] = {
    cudaErrorIllegalAddress, cudaErrorMisalignedAddress,  cudaErrorInvalidAddressSpace,
    cudaErrorInvalidPc,      cudaErrorIllegalInstruction, cudaErrorHardwareStackError,
    cudaErrorLaunchFailure,  cudaErrorLaunchTimeout,      cudaErrorAssert};

}  // namespace

bool stepwise() {
  const char* s = std::getenv("TG_STEPWISE");
  return s && *s && *s != '0';
}

void fail(cudaError_t status, std::string_view what) {
  cudaGetLastError();  // clears the error, so that the next call does not report it again
  std::string why = "[cuda] " + std::string(what) + ": " + cudaGetErrorString(status);
  if (status == cudaErrorMemoryAllocation) throw OutOfMemory(why);
  if (std::ranges::find(sticky, status) != std::end(sticky) && !stepwise())
    why +=
        "; an earlier step caused this error: run again with TG_STEPWISE=1 in the environment to learn which";
  throw DeviceError(why);
}

cudaError_t query(cudaEvent_t event) {
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaErrorNotReady) cudaGetLastError();  // the next launch would otherwise seem to have failed
  return status;
}
// Reading the current GPU takes a tenth of the time of setting it.
void use_gpu(int ordinal) {
  int current = -1;
  if (cudaGetDevice(&current) == cudaSuccess && current == ordinal) return;
  if (const cudaError_t status = cudaSetDevice(ordinal); status != cudaSuccess)
    fail(status, "GPU " + std::to_string(ordinal));
}

}  // namespace tg::cuda
