// Decides which calls decoding supports, and divides their keys and queries.
#include "backends/cuda/attention/decoding/decoding.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "backends/cuda/attention/decoding/decoding_shape.h"

namespace tg::cuda::attention::decoding {

namespace {

using i64 = std::int64_t;

// Whether 32 bits can address every 16-byte piece of a pool.
bool is_in_reach(const AttentionCall& x, const AttentionCall::TensorView& a) {
  const i64 each = 16 / static_cast<i64>(size_of(x.type));
  i64 left = i64{UINT32_MAX} - 576 / each;
  for (const auto& [stride, count] :
       {std::pair{a.batch, i64{x.pool}}, {a.row, i64{x.page}}, {a.head, i64{x.Hk}}}) {
    if (stride < 0 || (count > 1 && stride / each > left / (count - 1))) return false;
    left -= stride / each * (count - 1);
  }
  return true;
}
// Contiguous caches: supported for few rows.
bool takes_rows(const AttentionCall& x) {
  constexpr int few_keys = 64;  // if L > 1, another forward kernel computes so few keys in one tile
  return i64{x.H} / x.Hk * x.L <= most_rows(x) && x.B <= most_entries && (x.L == 1 || x.T > few_keys) &&
         x.B * x.Hk * ranges_of(x) <= INT32_MAX && (!is_of_latents(x) || is_in_reach(in_pages(x), x.k));
}
// Paged caches: supported for any L, because the choice of kernel must not depend on L.
bool takes_pages(const AttentionCall& x) {
  const i64 rows = i64{x.H} / x.Hk * x.L;
  return x.pool > 0 && is_in_reach(x, x.k) && is_in_reach(x, x.v) &&
         (x.B == 0 || rows <= INT32_MAX / 2 / x.B) && i64{most_entries} * x.Hk * ranges_of(x) <= INT32_MAX;
}

bool takes_latents(const AttentionCall& x, const Gpu& gpu) {
  return x.d <= LatentShape::D && x.dv <= LatentShape::D_v && values_are_keys(x) &&
         LatentShape::bytes <= gpu.shared_per_block;
}

// Whether the ranges' results are stored for a merge. Latents always need one.
bool has_partial_results(const AttentionCall& x) {
  return ranges_of(x) > 1 || is_of_latents(x);
}

// Maximum number of ranges of a sequence in the wgmma kernels.
int range_count(const AttentionCall& x) {
  return 1 + ranges_by_wgmma(x).of(std::max(x.T, 1) - 1);
}

}  // namespace

bool takes(const AttentionCall& x, const Gpu& gpu) {
  const auto has_memory = [&](auto shape) { return shape.bytes(rows_of_shape(x)) <= gpu.shared_per_block; };
  if (x.Hk == 0 || x.T == 0 || x.bias.data || x.dropout > 0 || x.cu_q) return false;
  if (!(x.table ? takes_pages(x) : takes_rows(x))) return false;
  if (x.type == DType::f32) return !is_of_latents(x) && with_shape<4>(x, gpu, has_memory);
  return is_of_latents(x) ? takes_latents(x, gpu) : with_shape<2>(x, gpu, has_memory);
}

bool uses_split_kv(const AttentionCall& x, int ranges, const Gpu& gpu) {
  constexpr int rows = 8, streams = 8;  // must equal the kernel's values
  return x.type != DType::f32 && ranges <= most_split && rows_of_tile(x) <= rows && x.d <= 128 &&
         x.dv <= 128 && with_shape<2>(x, gpu, [](auto shape) { return shape.streams == streams; });
}

// Ranges are short enough for several blocks to share a batch entry. They are long enough to hide the writes
// of the previous range's results, which take about 3 µs (100 KB) on an H200. There are at most 32 ranges,
// because a single block merges them.
EqualRanges InOnePiece::ranges(const AttentionCall& x) {
  const int size = std::max(x.d, x.dv),
            narrow = x.T <= 2048   ? 256
                     : x.T <= 4096 ? 512
                                   : 1024,
            least = size <= 64    ? (x.T > 1024 && x.T <= 4096 ? 512 : 1024)
                    : size <= 128 ? narrow
                                  : narrow / 2;
  return {std::max(least, static_cast<int>(std::bit_ceil(static_cast<unsigned>((x.T - 1) / 32 + 1))))};
}
GrowingRanges InPages::ranges(const AttentionCall& x) {
  const int size = std::max(x.d, x.dv);
  return {size <= 64 ? 10 : size <= 128 ? 9 : 8};
}
EqualRanges OfLatents::ranges(const AttentionCall& x) {
  return x.table ? EqualRanges{1024} : InOnePiece::ranges(x);
}
int ranges_of(const AttentionCall& x) {
  const int last = std::max(x.T, 1) - 1;
  return 1 + (is_of_latents(x) ? OfLatents::ranges(x).of(last)
              : x.table        ? InPages::ranges(x).of(last)
                               : InOnePiece::ranges(x).of(last));
}

Tiles tiles_of_launch(const AttentionCall& x, int n) {
  const int of_entry = (rows_of(x) + most_rows(x) - 1) / most_rows(x), all = static_cast<int>(x.B) * of_entry;
  if (!x.table) return {0, n == 0 ? all : 0, of_entry, rows_of_tile(x)};
  constexpr i64 most_bytes = i64{128} << 20;
  const i64 each = has_partial_results(x) ? i64{4} * x.Hk * ranges_of(x) * rows_of_tile(x) * (x.dv + 1) : 0,
            count = std::clamp<i64>(most_bytes / (each + 1), 1, most_entries), first = n * count;
  return {static_cast<int>(std::min<i64>(first, all)), static_cast<int>(std::min<i64>(count, all - first)),
          of_entry, rows_of_tile(x)};
}

bool takes_by_wgmma(const AttentionCall& x, const Gpu& gpu) {
  constexpr int least_heads = 16;  // with fewer heads, a tile of 64 rows is too empty for prompts
  const auto expanded = [](i64 stride, i64 count) { return stride == 0 && count > 1; };
  const AttentionCall all = in_pages(x);
  return gpu.hopper && (x.type == DType::bf16 || x.type == DType::f16) && x.B > 0 && x.L > 0 && x.Hk > 0 &&
         all.page > 0 && all.pages > 0 && all.pool > 0 && is_of_latents(x) && x.d <= LatentShape::D &&
         x.dv <= LatentShape::D_v && values_are_keys(x) && group_of(x) >= least_heads && !x.bias.data &&
         x.dropout == 0 && !x.cu_q && (x.table || x.L == 1) && x.L <= INT32_MAX / x.B &&
         i64{x.Hk} * pieces_of(x) * heads_of_piece(x) * range_count(x) <= INT32_MAX / 2 &&
         is_in_reach(all, x.k) && !expanded(x.q.batch, x.B) && !expanded(x.q.head, x.H) &&
         !expanded(x.q.row, x.L) && !expanded(x.k.batch, all.pool) && !expanded(x.k.head, x.Hk) &&
         !expanded(x.k.row, all.page);
}
// Each row stores dv f32 elements for the merge. For tiles of 64 rows, that is at most 1/18 of the keys'
// bytes.
EqualRanges ranges_by_wgmma(const AttentionCall& x) {
  return {group_of(x) > 32 ? 2048 : 1024};
}
Tiles queries_of_launch(const AttentionCall& x, int n) {
  constexpr i64 most_bytes = i64{128} << 20;
  const i64 all = x.B * x.L, rows = i64{x.Hk} * pieces_of(x) * heads_of_piece(x),
            each = 4 * rows * range_count(x) * (x.dv + 2), count = std::max<i64>(most_bytes / each, 1),
            first = n * count;
  return {static_cast<int>(std::min(first, all)), static_cast<int>(std::min(count, all - first)), x.L};
}
Workspace workspace_by_wgmma(const AttentionCall& x, std::byte* base) {
  const std::size_t queries(queries_of_launch(x, 0).count);
  return Workspace::of_parts(range_count(x), queries * x.Hk * pieces_of(x) * heads_of_piece(x), x.dv, base);
}

Workspace workspace(const AttentionCall& x, std::byte* base) {
  const std::size_t tiles(has_partial_results(x) ? tiles_of_launch(x, 0).count : 0);
  return Workspace::of_parts(ranges_of(x), tiles * x.Hk * rows_of_tile(x), x.dv, base);
}

}  // namespace tg::cuda::attention::decoding
