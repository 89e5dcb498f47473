// What a recorded graph becomes before it is instantiated.
#pragma once

#include <cuda_runtime_api.h>

namespace tg::cuda {

// Puts kernels in the place of memsets, which cuBLASLt's split products record. A line of kernels takes the
// host 2 µs to launch, however long, and each memset in it 1.7 µs more (CUDA 13.0, driver 580).
cudaError_t memsets_to_kernels(cudaGraph_t graph);

}  // namespace tg::cuda
