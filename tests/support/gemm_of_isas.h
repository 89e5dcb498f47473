// Declares the GEMMs of the instruction sets for which the test was built. The baseline's GEMMs are in the
// namespace TG_ISA.
#pragma once

#include "backends/cpu/kernels/gemm.h"

namespace tg::cpu {

#ifdef TILEGRAD_ISA_avx2
namespace avx2 {
Scratch gemm_scratch(const Gemm&, int);
void gemm(const Gemm&, Worker&);
}  // namespace avx2
#endif
#ifdef TILEGRAD_ISA_avx512
namespace avx512 {
Scratch gemm_scratch(const Gemm&, int);
void gemm(const Gemm&, Worker&);
}  // namespace avx512
#endif

}  // namespace tg::cpu
