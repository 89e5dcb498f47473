#include "backends/cuda/attention/division_sm90.h"

#include <algorithm>

namespace tg::cuda::attention {

namespace {

using i64 = std::int64_t;

i64 pieces(i64 all, i64 each) {
  return (all + each - 1) / each;
}

}  // namespace

ForwardTile forward_tile(const AttentionCall& x) {
  constexpr int few_keys = 2048;
  const int size = std::max(x.d, x.dv);
  if (size > 256) return {64, 64};
  if (size <= 64) return x.T < few_keys ? ForwardTile{256, 64} : ForwardTile{192, 128};
  return {128, size <= 192 && x.dv <= 128 ? 128 : 80};
}

AttentionCall with_heads_as_rows(const AttentionCall& x) {
  const i64 queries = forward_tile(x).queries, group = x.Hk > 0 ? x.H / x.Hk : 1, rows = group * x.L;
  const auto follow = [&](const AttentionCall::Operand& a) { return x.L == 1 || a.head == a.row * x.L; };
  if (pieces(rows, queries) >= group * pieces(x.L, queries) || rows > INT32_MAX || !follow(x.q) ||
      !follow(x.o))
    return x;
  AttentionCall to = x;
  for (AttentionCall::Operand* a : {&to.q, &to.o}) {
    if (x.L == 1) a->row = a->head;
    a->head *= group;
  }
  to.H = x.Hk, to.L = static_cast<int>(rows);
  return to;
}

// The shortest of estimates. All tiles are taken to come from memory, which is what few queries wait for; an
// item takes some time beside its tiles, and so does the merge, which passes over the parts' f32 sums twice.
int parts_of_keys(const AttentionCall& x, const Gpu& gpu) {
  constexpr double item = 3, merge = 3;                            // µs
  constexpr double processor_reads = 32e3, merge_passes_on = 3e6;  // bytes in a µs
  const auto [queries, keys] = forward_tile(x);
  const i64 items = x.B * x.H * pieces(x.L, queries), tiles = pieces(x.T, keys), processors = gpu.processors,
            most = std::min(tiles, 2 * processors / std::max<i64>(items, 1));
  const double tile = double(keys) * (x.d + x.dv) * 2 / processor_reads,
               sums = double(x.B) * x.H * x.L * x.dv * 4;
  const auto time = [&](i64 parts) {
    const double computing = pieces(items * parts, processors) * (item + tile * pieces(tiles, parts));
    return parts == 1 ? computing : computing + merge + 2 * parts * sums / merge_passes_on;
  };
  i64 best = 1;
  for (i64 parts = 2; parts <= most; ++parts)
    if (time(parts) < time(best)) best = parts;
  return static_cast<int>(best);
}

}  // namespace tg::cuda::attention
