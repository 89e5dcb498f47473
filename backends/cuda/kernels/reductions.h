// Reductions that other kernels use.
#pragma once

#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// out[i] = Σ_p partial[p·step + i] for i < n, p < parts, always in ascending order of p; partial holds
// doubles if `wide`, else floats; step > 1 or parts = 1; out is contiguous.
void sum_parts(const Stream& s, const void* partial, bool wide, long long n, long long parts, long long step,
               const Arg& out);

}  // namespace tg::cuda
