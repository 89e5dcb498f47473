// How Hopper's forward kernels divide their work.
#include <algorithm>

#include "backends/cuda/attention/workspace.h"

namespace tg::cuda::attention {

namespace {

using i64 = std::int64_t;

i64 pieces(i64 all, i64 each) {
  return (all + each - 1) / each;
}

i64 items_of(const AttentionCall& x) {
  return x.B * x.H * pieces(x.L, forward_tile(x).queries);
}

}  // namespace

ForwardTile forward_tile(const AttentionCall& x) {
  const int size = std::max(x.d, x.dv);
  if (size > 256) return {64, 64};
  if (size <= 128 && x.L <= 64) return {64, 64, short_blocks(size)};
  if (size <= 64) return x.T < few_keys ? ForwardTile{256, 64} : ForwardTile{192, 128};
  return {128, size <= 192 && x.dv <= 128 ? 128 : 80};
}

AttentionCall with_heads_as_rows(const AttentionCall& x) {
  const i64 group = x.Hk > 0 ? x.H / x.Hk : 1, rows = group * x.L;
  const auto follow = [&](const AttentionCall::TensorView& a) { return x.L == 1 || a.head == a.row * x.L; };
  if (rows > INT32_MAX || !follow(x.q) || !follow(x.o)) return x;
  AttentionCall to = x;
  for (AttentionCall::TensorView* a : {&to.q, &to.o}) {
    if (x.L == 1) a->row = a->head;
    a->head *= group;
  }
  to.H = x.Hk, to.L = static_cast<int>(rows);
  return items_of(to) < items_of(x) ? to : x;
}

// Minimizes an estimate of the run time:
// - A block needs a fixed time per tile.
// - The blocks of a multiprocessor share its tensor cores.
// - All running blocks share the memory bandwidth, which is 1.5 times higher if some blocks read the same
//   keys.
// - Each work item and the merge have a fixed cost.
int parts_of_keys(const AttentionCall& x, const Gpu& gpu) {
  constexpr double item = 3, merge = 4, tile = 0.4;                                     // µs
  constexpr double block_reads = 72e3, memory_delivers = 4.2e6, merge_passes_on = 8e6;  // bytes per µs
  constexpr double products = 4.5e6;  // FLOPs per µs and multiprocessor
  // At head size 64, long heads whose keys are split use different tiles.
  const auto [queries, keys, blocks] =
      std::max(x.d, x.dv) <= 64 && x.L > 64 ? ForwardTile{128, 128} : forward_tile(x);
  const i64 items = x.B * x.H * pieces(x.L, queries), tiles = pieces(x.T, keys),
            places = i64{gpu.processors} * blocks,
            most = std::min(tiles, 2 * places / std::max<i64>(items, 1));
  const bool wide = x.d > 256 || x.dv > 256, shares = items > x.B * x.Hk;
  const double bytes = double(keys) * (x.d + (wide && values_are_keys(x) ? 0 : x.dv)) * 2,
               flops = 2.0 * std::min(x.L, queries) * keys * (x.d + x.dv),
               sums = double(x.B) * x.H * x.L * x.dv * 4;
  const auto time = [&](i64 parts) {
    const i64 all = items * parts, busy = std::min(all, places);
    const double each = std::max({tile + bytes / block_reads,
                                  bytes * double(busy) / (memory_delivers * (shares ? 1.5 : 1)),
                                  flops * double(pieces(busy, gpu.processors)) / products}),
                 computing = double(pieces(all, places)) * (item + each * double(pieces(tiles, parts)));
    return parts == 1 ? computing : computing + merge + 2 * double(parts) * sums / merge_passes_on;
  };
  i64 best = 1;
  for (i64 parts = 2; parts <= most; ++parts)
    if (time(parts) < time(best)) best = parts;
  return static_cast<int>(best);
}

}  // namespace tg::cuda::attention
