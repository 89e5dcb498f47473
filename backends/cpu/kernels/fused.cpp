// Runs a fused elementwise step block by block. A block stays in the L1 cache while it passes through all
// instructions, so memory is read and written once.
#include <cstdio>

#include "backends/cpu/kernels/chain.h"

namespace tg::cpu::TG_ISA {

namespace {

using Plan = PointwisePlan;

void run(Worker& w, const Call& call) {
  const Plan& p = *static_cast<const Plan*>(call.plan);
  const Chain chain{p, call, w.scratch};
  const int last = p.rank - 1;
  const bool tiled = p.tile_axis >= 0;
  i64 blocks = (p.numel + Plan::block - 1) / Plan::block;
  if (tiled && p.numel > 0)
    blocks = p.numel / (p.shape[last] * p.shape[p.tile_axis]) * Chain::tiles(p.shape[last]) *
             Chain::tiles(p.shape[p.tile_axis]);
  // Parts of whole blocks, several per thread, so that a slow thread does not delay the others.
  const i64 parts = blocks < w.threads * 8 ? blocks : w.threads * 8;
  w.each(parts, [&](i64 part) {
    for (i64 b = blocks * part / parts; b < blocks * (part + 1) / parts; ++b) {
      const i64 start = b * Plan::block, left = p.numel - start;
      if (tiled)
        chain.run_tile(b);
      else
        chain.run_stretch(start, left < Plan::block ? left : Plan::block);
    }
  });
  if (chain.streams()) stream_end();
}

Scratch scratch(const Call& call, int) {
  const Plan& p = *static_cast<const Plan*>(call.plan);
  return {static_cast<std::size_t>(p.slots) * Plan::block * static_cast<std::size_t>(p.compute_size), 0};
}

void choice(const Call& call, int, char* text, std::size_t size) {
  const Plan& p = *static_cast<const Plan*>(call.plan);
  const bool streams = Chain{p, call, nullptr}.streams();
  if (p.tile_axis >= 0)
    std::snprintf(text, size, "square tiles of %d×%d%s", Plan::tile, Plan::tile,
                  streams ? ", past the caches" : "");
  else
    std::snprintf(text, size, "blocks of %d%s", Plan::block, streams ? ", past the caches" : "");
}

}  // namespace

extern const Kernel fused_kernel{&run, &scratch, &choice};

}  // namespace tg::cpu::TG_ISA
