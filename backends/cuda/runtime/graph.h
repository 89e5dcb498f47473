// Changes to a recorded graph before it is instantiated.
#pragma once

#include <cuda_runtime_api.h>

namespace tg::cuda {

// Replaces memsets by kernels. cuBLASLt's split-k GEMMs record memsets. The host needs 2 µs to launch a
// sequence of kernels of any length. Each memset in the sequence adds 1.7 µs (CUDA 13.0, driver 580).
cudaError_t memsets_to_kernels(cudaGraph_t graph);

}  // namespace tg::cuda
