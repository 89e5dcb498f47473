// The product of bf16 matrices on the tiles of AMX.
#include "backends/cpu/kernels/amx.h"

#if defined(TG_BF16_TILES)
#include "backends/cpu/kernels/gemm_tiles.h"

namespace tg::cpu::TG_ISA {

ScratchSize gemm_tiles_scratch(const Gemm& g, int threads) {
  return tiles_scratch(g, threads);
}

void gemm_tiles(const Gemm& g, Worker& worker) {
  run_tiles<Amx>(g, worker);
}

}  // namespace tg::cpu::TG_ISA
#endif
