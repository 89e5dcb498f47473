// The part of a run that a profiler looks at: `ncu --profile-from-start off`.
#pragma once

#ifdef TILEGRAD_CUDA
#include <cuda_profiler_api.h>
#endif

namespace tg::bench {

// Calls f between cudaProfilerStart and cudaProfilerStop, which do nothing without a profiler. Compiling a
// program runs kernels of its own, cuBLASLt's candidates for each product among them: they stay outside.
template <class F>
void profiled(F&& f) {
#ifdef TILEGRAD_CUDA
  cudaProfilerStart();
  f();
  cudaProfilerStop();
#else
  f();
#endif
}

}  // namespace tg::bench
