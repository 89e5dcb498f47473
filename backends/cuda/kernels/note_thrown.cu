// Makes an exception of a host function a fault of the program: what follows leaves parameters alone.
#include <cuda_runtime.h>

#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/runtime/host_kernel.h"

namespace tg::cuda {

namespace {

__global__ void note(const volatile int* threw, Faults faults) {
  begin_early();
  if (*threw != 0) faults.check_index(-1, 0, Fault::thrown);
}

}  // namespace

void note_thrown(const Stream& s, const int* threw) {
  launch_early(s, {1, 1}, note, threw, s.faults);
}

}  // namespace tg::cuda
