// How kernels on tensor cores divide their work, and their layout of shared memory, which may exceed what a
// GPU has: the host needs these numbers to choose a kernel.
#pragma once

#include "backends/cuda/attention/workspace.h"

namespace tg::cuda::attention {

#if defined(__CUDA_ARCH__)
constexpr int arch = __CUDA_ARCH__;
#else
constexpr int arch = 900;  // on the host: the layout that needs the most shared memory
#endif

constexpr int bytes_of_seen_keys(int queries) {
  return queries * 8;
}
constexpr int aligned(int bytes, int to) {
  return (bytes + to - 1) / to * to;
}

// Of a kernel's TileShape, the most stages of tiles for which a block has the shared memory; 0 if not even
// for one.
template <class TileShape>
int fitting_stages(const Gpu& gpu) {
  int n = TileShape::most_stages;
  while (n > 0 && TileShape::bytes(n) > std::size_t(gpu.shared_per_block)) --n;
  return n;
}

// What operands are on tensor cores: bf16 or f16 as they are, or f32 as one or two f16 terms.
enum Numbers { of_16_bits, one_term, two_terms };
// The type of results of a kernel whose TileShape says what operands of type S are.
template <class S, class TileShape>
using Result = std::conditional_t<TileShape::split, float, S>;
// Numbers of a row of an operand of size `size`: where it is split, of all terms, and padded.
template <class TileShape>
TG_HOST_DEVICE int size_in_memory(const AttentionCall::TensorView& a, int size) {
  return TileShape::split ? static_cast<int>(a.row) : size;
}

namespace forward {

// d ≤ D, dv ≤ DV; `rows` queries and `columns` of O per warp, as many as registers hold; warps that share
// the widest values compute the same scores.
template <Numbers numbers, int D, int DV, Options options>
struct TileShape {
  static constexpr bool wide = D > 128, split = numbers != of_16_bits, plain = options == none;
  // Keys and values have one stage, each fetched while the other is multiplied: then 64 keys and 64 queries
  // need 97 KiB, and two blocks share a multiprocessor that has 227.
  static constexpr bool alternating = DV == 256;
  static constexpr int terms = numbers == two_terms ? 2 : 1;
  static constexpr int rows = (split ? D <= 64 : DV <= 128) ? 32 : 16, queries = 4 * rows,
                       splits = DV > 256 ? 2 : 1, columns = DV / splits, threads = 128 * splits;
  static constexpr int keys = alternating  ? 64
                              : !split     ? (wide || D == 96 || (D >= 64 && !plain) ? 32 : 64)
                              : D == 32    ? 32
                              : terms == 1 ? (D <= 64 && plain ? 64 : 32)
                                           : (D <= 64 && plain ? 32 : 16);  // of a tile
  static constexpr int blocks = split ? 2 : 0;                              // per multiprocessor; 0: any
  static constexpr int most_stages = alternating ? 1 : 2, seen = queries * D * terms * 2,
                       stages = aligned(seen + bytes_of_seen_keys(queries), 1024), v = keys * D * terms * 2,
                       stage = v + keys * DV * terms * 2;
  static constexpr std::size_t bytes(int n) { return stages + n * stage; }
};

}  // namespace forward

namespace one_pass {

enum Side { by_key, by_query };  // what a block keeps

// How a block's work is divided among its warps: tiles of `kept` and `passing` rows; P and z_A in pieces of
// score_rows × score_columns; sums in parts of sum_rows × v_columns (z_V) or own_columns
// (z_K or z_Q); a passing tile's z_Q in pieces of q_rows × q_columns.
struct Cut {
  int warps, kept, passing, score_rows, score_columns, sum_rows, v_columns, own_columns, q_rows, q_columns;
};
// Without softcap, bias and dropout, the warps of wide heads work in two groups: one makes P, one z_P and
// z_A. Each warp then has one piece of scores, twice as wide, which reads a third less of shared memory.
constexpr bool in_groups(int D, Options options) {
  return D > 128 && D <= 256 && options == none;
}
constexpr bool has_wide_sums = arch >= 900;  // before, red_add_v4 is four instructions, and takes registers
constexpr bool has_room_for_three = arch >= 900 && arch < 1200;  // 227 KiB of shared memory
// d ≤ D and dv ≤ DV. As large as registers allow: (sum_rows·columns + 2·score_rows·score_columns)
// / 32 and some 60 for the rest.
template <Side side, int D, int DV, Options options>
consteval Cut cut() {
  constexpr bool plain = options == none;
  constexpr int wide_columns = in_groups(D, options) ? 32 : 16;  // of a piece of scores
  if (side == by_query)
    return D <= 256 ? Cut{8, 64, 64, 32, wide_columns, 32, 0, D / 4, 0, 0}
                    : Cut{8, 64, 32, 16, 16, 32, 0, D / 4, 0, 0};
  if (D <= 64) return {4, 128, 64, 32, plain && has_wide_sums ? 32 : 16, 64, 64, 64, 32, 32};
  if (D <= 96) return {8, 128, 64, 32, plain ? 32 : 16, 64, 48, 48, 16, 48};
  if (D <= 128) return {8, 128, 64, 32, plain ? 32 : 16, 64, 64, 64, 32, 32};
  if (D <= 192) return {8, 64, 64, 32, wide_columns, 32, DV / 2, D / 2, 32, 48};
  if (D <= 256) return {8, 64, 64, 32, wide_columns, 64, 64, 64, 32, 32};
  return {8, 32, 64, 16, 16, 32, DV / 4, D / 4, has_wide_sums ? 32 : 16, 48};
}

// Where a block works: the batch entry and the head (by key that of the keys), its first row, the nth piece
// of all, and the worker whose sums of z_Q it adds to.
struct WorkItem {
  int b, head, kept0, nth, worker;
};

// A block's shared memory. Passing tiles have one to three stages, as there is room. With three, P and z_A
// have two buffers, and warps synchronise once per tile instead of twice: some add to their sums while others
// compute the next tile's scores.
template <Side side, int D, int DV, Options options>
struct TileShape {
  static constexpr Cut c = cut<side, D, DV, options>();
  static constexpr bool by_query = side == Side::by_query, split = false;
  static constexpr int kept = c.kept, passing = c.passing, queries = by_query ? kept : passing,
                       keys = by_query ? passing : kept, threads = c.warps * 32, a_width = D, b_width = DV;
  static constexpr int kept_a = 0, kept_b = kept * D * 2, p = kept_b + kept * DV * 2,
                       za = p + (by_query ? 0 : kept * passing * 2), seen = za + kept * passing * 2,
                       stats = seen + bytes_of_seen_keys(queries),
                       item = stats + 3 * queries * int(sizeof(float2)),
                       stages = aligned(item + int(sizeof(WorkItem)), 1024), passing_b = passing * D * 2,
                       stage = passing_b + passing * DV * 2;
  static constexpr int most_stages = !by_query && D > 64 && D <= 128 ? 3 : 2;
  static constexpr int second = stages + 3 * stage - p;  // from the first buffers of P and z_A to the second
  static constexpr std::size_t bytes(int n) { return stages + n * stage + (n == 3 ? seen - p : 0); }
};

// The shapes that one pass is compiled for.
auto with_shape(const AttentionCall& x, auto&& f) {
  return attention::with_shape<64, 96, 128, 192, 256, 576>(
      x, [&](auto d, auto dv, auto options) { return f(d, dv, constant<(options == none ? none : any)>()); });
}

}  // namespace one_pass

}  // namespace tg::cuda::attention
