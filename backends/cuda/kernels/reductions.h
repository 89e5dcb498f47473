// Reductions that other kernels make use of.
#pragma once

#include "backends/cuda/kernel.h"

namespace tg::cuda {

// out[i] = Σ_p partial[p·step + i] for i < n, p < parts, in this order of p's whatever the timing; partial
// holds doubles if `wide`, else floats; step > 1 or parts = 1; out lies in one piece.
void sum_parts(const Stream& s, const void* partial, bool wide, long long n, long long parts, long long step,
               const Arg& out);

}  // namespace tg::cuda
