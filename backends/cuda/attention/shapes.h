// Tile shapes and shared-memory layouts of the tensor-core kernels. The host reads them to choose a kernel,
// because a layout may exceed the shared memory of the GPU.
#pragma once

#include "backends/cuda/attention/workspace.h"

namespace tg::cuda::attention {

#if defined(__CUDA_ARCH__)
constexpr int arch = __CUDA_ARCH__;
#else
constexpr int arch = 900;  // on the host, assume the layout that needs the most shared memory
#endif

constexpr int bytes_of_seen_keys(int queries) {
  return queries * 8;
}
constexpr int aligned(int bytes, int to) {
  return (bytes + to - 1) / to * to;
}

// The largest number of TileShape's pipeline stages that fit in a block's shared memory; 0 if no stage fits.
template <class TileShape>
int fitting_stages(const Gpu& gpu) {
  int n = TileShape::most_stages;
  while (n > 0 && TileShape::bytes(n) > std::size_t(gpu.shared_per_block)) --n;
  return n;
}

// Operand format on tensor cores: bf16 or f16, or f32 split into one or two f16 values.
enum Numbers { of_16_bits, one_f16, two_f16 };
// Result type of a kernel for operands of type S in the format of TileShape.
template <class S, class TileShape>
using Result = std::conditional_t<TileShape::split, float, S>;
// Elements per row in memory of an operand with head size `size`. Split rows contain all f16 values and
// padding.
template <class TileShape>
TG_HOST_DEVICE int size_in_memory(const AttentionCall::TensorView& a, int size) {
  return TileShape::split ? static_cast<int>(a.row) : size;
}

namespace forward {

// The shape for d ≤ D and dv ≤ DV. Each warp has `rows` queries and `columns` columns of O, as many as
// registers hold. For the widest values, two warps share the columns of O and compute the same scores.
template <Numbers numbers, int D, int DV, Options options>
struct TileShape {
  static constexpr bool wide = D > 128, split = numbers != of_16_bits, plain = options == none;
  // Keys and values have one stage each. Each tile is fetched while the other one is multiplied. A block with
  // 64 keys and 64 queries then needs 97 KiB, so two blocks fit on a multiprocessor with 227 KiB.
  static constexpr bool alternating = DV == 256;
  static constexpr int terms = numbers == two_f16 ? 2 : 1;
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

enum Side { by_key, by_query };  // which rows a block keeps

// Tiling of a block's work among its warps.
// - A block keeps `kept` rows and iterates over tiles of `passing` rows.
// - P and z_A are computed in tiles of score_rows × score_columns per warp.
// - Each warp accumulates sum_rows × v_columns of z_V, and sum_rows × own_columns of z_K or z_Q.
// - z_Q of a passing tile is computed in tiles of q_rows × q_columns.
struct Cut {
  int warps, kept, passing, score_rows, score_columns, sum_rows, v_columns, own_columns, q_rows, q_columns;
};
// Without softcap, bias and dropout, the warps of wide heads are specialized. One group computes P, and the
// other group computes z_P and z_A. Each warp then has one score tile of twice the width, and reads a third
// less shared memory.
constexpr bool in_groups(int D, Options options) {
  return D > 128 && D <= 256 && options == none;
}
// Before Hopper, red_add_v4 is four instructions and needs more registers.
constexpr bool has_wide_sums = arch >= 900;
constexpr bool has_room_for_three = arch >= 900 && arch < 1200;  // 227 KiB of shared memory
// The tiling for d ≤ D and dv ≤ DV, with tiles as large as registers allow. A thread needs (sum_rows·columns
// + 2·score_rows·score_columns) / 32 registers and about 60 others.
template <Side side, int D, int DV, Options options>
consteval Cut cut() {
  constexpr bool plain = options == none;
  constexpr int wide_columns = in_groups(D, options) ? 32 : 16;  // columns of a score tile
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

// Work of a block: the batch entry, the head (by_key: the key head), the first row, and the index among all
// items. `worker` determines the z_Q accumulator to which the block adds.
struct WorkItem {
  int b, head, kept0, nth, worker;
};

// A block's shared memory. Passing tiles have one to three stages, as many as fit. With three stages, P and
// z_A are double-buffered and warps synchronize once per tile instead of twice. Some warps then accumulate
// while others compute the scores of the next tile.
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
  static constexpr int second = stages + 3 * stage - p;  // offset of the second buffers of P and z_A
  static constexpr std::size_t bytes(int n) { return stages + n * stage + (n == 3 ? seen - p : 0); }
};

// Calls f with the shapes for which the one-pass kernels are compiled.
auto with_shape(const AttentionCall& x, auto&& f) {
  return attention::with_shape<64, 96, 128, 192, 256, 576>(
      x, [&](auto d, auto dv, auto options) { return f(d, dv, constant<(options == none ? none : any)>()); });
}

}  // namespace one_pass

}  // namespace tg::cuda::attention
