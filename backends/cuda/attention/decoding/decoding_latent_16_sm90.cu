// Decoding of latents by wgmma if at most 16 heads share a key head. Reading the keys limits its speed. A
// wgmma has M = 64. Its rows are therefore keys in the first GEMM and value columns in the second. The heads
// are its few columns:
//
//   Aᵀ = K·Qᵀ, c ← max(c, A.max), P = exp(A − c), π ← exp(c_old − c)·π + P.sum
//   Gᵀ ← exp(c_old − c)·Gᵀ + Vᵀ·Pᵀ
//
// Items are the same as in decoding_latent_items_sm90.cuh. Warps of the first warpgroup prepare items and
// load tiles of 64 keys. A tile is loaded in thirds of its columns. Seven thirds fit in shared memory, so at
// least one tile is in flight while another tile is multiplied. The two consumer warpgroups process alternate
// tiles of an item independently. The tile's position in the sequence determines its warpgroup. At the end,
// each warpgroup sends half of its accumulator columns to the other warpgroup.
#include "backends/cuda/attention/decoding/decoding_latent_items_sm90.cuh"
#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

namespace latents_16_sm90 {

using namespace latents_sm90;

struct Item {
  int batch_head;   // index of its results (place_of()); < 0: no more items
  int b, h, query;  // sequence, first head, query of the sequence
  KeyRange some;
  Tiles range;
  __device__ __forceinline__ void set_seen(KeyRange) {}  // all heads see `some`
};

// 64 rows × 192 columns in the layout of boxes of whole 8-row groups. The three blocks of 64 columns of a
// group are adjacent, each in the 128-byte swizzle. A page with any number of groups is therefore one box.
struct ThirdOfTile {
  static constexpr int rows = tile_keys, columns = 192, blocks = 3, block = 8 * 128, group = blocks * block,
                       bytes = rows / 8 * group;
  u32 base;

  __device__ static constexpr int offset(int row, int piece) {
    return row / 8 * group + piece / 8 * block + row % 8 * 128 + (piece % 8 ^ row % 8) * 16;
  }
  // wgmma descriptors, as in SwizzledTile.
  __device__ __forceinline__ u64 along_columns(int row0, int k) const {
    return descriptor(base + row0 / 8 * group, k / 4 * block + k % 4 * 32);
  }
  __device__ __forceinline__ u64 along_rows(int column0, int k) const {
    return descriptor(base + column0 / 64 * block, k * 2 * group);
  }

 private:
  __device__ __forceinline__ static u64 descriptor(u32 address, u32 bytes) {
    constexpr u32 upper = group / 16 | 1u << 30;
    return u64{upper} << 32 | ((address % (1u << 18) / 16 | 1u << 16) + bytes / 16);
  }
};

struct At {
  static constexpr int rows = decoding::few_heads, thirds = 3, stages = 7, items = 2, groups = 2,
                       threads = 128 * (1 + groups);
  using Q = SwizzledTile<rows, 576>;
  using ThirdOfQ = SwizzledTile<rows, 192>;
  using K = ThirdOfTile;
  using P = SwizzledTile<rows, tile_keys>;
  static constexpr int blocks = most_values / 64;  // blocks of 64 columns of V (rows of Gᵀ)
  using Block = Accumulator<16, rows>;             // a warp's part of a block
  // Within an item, the other warpgroup was the last user of the stage of a tile's first third. This is not
  // so for the other thirds (see multiply()).
  static_assert(stages == groups * thirds + 1);
};
using decoding::OfWarps;  // one per warpgroup; a warp has 16 keys of a tile, and rows are heads
static_assert(OfWarps::rows == At::rows);

struct Shared {
  static constexpr int k = At::Q::bytes, p = k + At::stages * At::K::bytes,
                       sent = p + At::groups * At::P::bytes,
                       sent_bytes = At::blocks / 2 * (At::rows / 8) * 128 * int(sizeof(float4)),
                       of_warps = sent + At::groups * sent_bytes,
                       q_ring = of_warps + At::groups * int(sizeof(OfWarps)),
                       k_ring = q_ring + Ring<1>::bytes, handed_on = k_ring + Ring<At::stages>::bytes,
                       item_ring = handed_on + Ring<At::thirds>::bytes,
                       item = item_ring + Ring<At::items>::bytes,
                       bytes = item + At::items * int(sizeof(Item));
  static_assert(bytes <= 227 << 10);
  unsigned char* start;
  u32 base = shared_address(start);

  __device__ At::Q tile_q() const { return {base}; }
  __device__ At::ThirdOfQ third_of_q(int n) const { return {base + n * At::ThirdOfQ::bytes}; }
  // Thirds are numbered consecutively, tile by tile.
  __device__ At::K third_of_k(u32 use) const {
    return {base + k + Ring<At::stages>::stage(use) * At::K::bytes};
  }
  __device__ At::P tile_p(int group) const { return {base + p + group * At::P::bytes}; }
  // Accumulators that one warpgroup sends to the other. Each thread has four elements for each block and each
  // group of 8 heads.
  __device__ float4* sent_by(int group) const {
    return reinterpret_cast<float4*>(start + sent + group * sent_bytes);
  }
  __device__ OfWarps& of_group(int group) const {
    return reinterpret_cast<OfWarps*>(start + of_warps)[group];
  }
  __device__ Ring<1> ring_q() const { return {base + q_ring}; }
  __device__ Ring<At::stages> ring_k() const { return {base + k_ring}; }
  // Tiles with empty stages that the second loading warp fills: fewer than three at a time.
  __device__ Ring<At::thirds> ring_handed_on() const { return {base + handed_on}; }
  __device__ Ring<At::items> ring_items() const { return {base + item_ring}; }
  __device__ Item& item_of(u32 use) const {
    return reinterpret_cast<Item*>(start + item)[Ring<At::items>::stage(use)];
  }
  __device__ void init() const {
    ring_q().init(4 * At::groups), ring_k().init(4), ring_handed_on().init(1);
    ring_items().init(4 * At::groups + 3);
    ptx::fence_mbarrier_init();
  }
};

// Locations of an item's boxes, starting with its last tile, in units of 8 pool rows. Each lane looks up one
// box. Lookups are 32 boxes ahead of the copies, because under load a lookup takes longer than a tile.
struct Boxes {
  const AttentionCall& x;
  const Plan& plan;
  decoding::LatentRowAddress place;
  const KeyRange keys;
  const int together = plan.box_rows / 2;  // number of tiles whose boxes a warp looks up together
  int set, now, next;  // set of tiles in `now`; the lane's box of this set and of the previous set

  __device__ __forceinline__ Boxes(const AttentionCall& x, const Plan& plan, const Source& from)
      : x(x), plan(plan), place(from.place), keys(from.some) {
    if (plan.box_rows == 0) return;
    set = (from.range.to - 1) / together;
    now = looked_up(set), next = looked_up(set - 1);
  }
  // Box `nth` of a tile. The tile must be in the current set or in the previous set (towards the start).
  __device__ __forceinline__ void move_to(int tile) {
    if (plan.box_rows > 0 && tile / together < set) now = next, next = looked_up(--set - 1);
  }
  __device__ __forceinline__ int of(int tile, int nth) const {
    return __shfl_sync(~0u, now, tile % together * (tile_keys / plan.box_rows) + nth);
  }

 private:
  __device__ __forceinline__ int looked_up(int set) {
    const int key = (set * 32 + lane_id()) * plan.box_rows;
    // Boxes without visible keys are not copied.
    place.look_up(x, key, {keys.from / plan.box_rows * plan.box_rows, keys.to});
    return place.number * (x.page / 8) + place.in_page / 8;
  }
};

// Warp that loads tiles of keys in whole boxes. If the previous kernel does not write the data, it starts
// before that kernel has ended.
__device__ __forceinline__ void load(const Shared& shared, const AttentionCall& x, const Plan& plan) {
  const std::uint64_t once = ptx::evict_first();
  if (!x.fixed_positions) ptx::wait_for_kernel_before();
  u32 thirds = 0, handed_on = 0;
  each_item(shared, x, [&](Source& from, u32) {
    Boxes boxes(x, plan, from);
    if (!x.fixed_keys && thirds == 0) ptx::wait_for_kernel_before();
#pragma unroll 1
    for (int j = from.range.to - 1; j >= from.range.from; --j, thirds += At::thirds) {
      const bool by_rows = from.by_rows(plan, j);
      boxes.move_to(j);
#pragma unroll 1
      for (u32 n = 0; n < At::thirds; ++n) {
        const At::K to = shared.third_of_k(thirds + n);
        shared.ring_k().acquire(thirds + n);
        if (by_rows) continue;
        __syncwarp();  // all lanes saw the empty stage; once filled, it may be emptied again
        if (lane_id() == 0) shared.ring_k().expect(thirds + n, to.bytes);
#pragma unroll 1
        for (int box = 0; box * plan.box_rows < to.rows; ++box) {
          const int at = boxes.of(j, box);
          if (lane_id() == 0)
            ptx::tma_load(to.base + box * (plan.box_rows / 8) * to.group, &plan.k,
                          shared.ring_k().full(thirds + n), 0, 0, n * to.blocks, at, once);
        }
      }
      if (by_rows) shared.ring_handed_on().announce_by_warp(handed_on++);
    }
  });
  ptx::wait_for_kernel_before();  // then the next kernel need not wait for the previous one
}

// Warp that copies the other tiles of keys row by row.
template <class S>
__device__ __forceinline__ void load_by_rows(const Shared& shared, const AttentionCall& x, const Plan& plan) {
  ptx::wait_for_kernel_before();
  u32 thirds = 0, handed_on = 0;
  each_item(shared, x, [&](Source& from, u32) {
#pragma unroll 1
    for (int j = from.range.to - 1; j >= from.range.from; --j, thirds += At::thirds) {
      if (!from.by_rows(plan, j)) continue;
      shared.ring_handed_on().wait(handed_on++);
      const u32 to[] = {shared.third_of_k(thirds).base, shared.third_of_k(thirds + 1).base,
                        shared.third_of_k(thirds + 2).base};
      copy_keys<S>(
          [&](int c, int row, int piece) { return to[c / 3] + At::K::offset(row, c % 3 * 8 + piece); }, x,
          from.place, j * tile_keys, from.some);
      if (lane_id() < At::thirds) shared.ring_k().announce(thirds + lane_id());
    }
  });
}

// Warp that loads queries.
__device__ __forceinline__ void load_queries(const Shared& shared, const AttentionCall& x, const Plan& plan) {
  ptx::wait_for_kernel_before();
  each_item(shared, x, [&](Source& from, u32 items) {
    shared.ring_q().acquire(items);
    __syncwarp();
    if (lane_id() > 0) return;
    shared.ring_q().expect(items, At::Q::bytes);
    load_boxes(shared.tile_q(), plan.q, shared.ring_q().full(items), from.head, from.query, from.place.b);
  });
}

// Consumer warpgroup.
template <class S>
struct Consumer {
  using Softmax = SoftmaxState<QueriesAsColumns<At::rows>>;
  static constexpr int columns = At::Block::columns;  // heads per thread
  const Shared& shared;
  const AttentionCall& x;
  const Plan& plan;
  const int group, warp;
  u32 thirds = 0, items = 0;

  // Wait at a named barrier, for the threads of this warpgroup or of both warpgroups.
  __device__ __forceinline__ void sync() const { ptx::bar_sync(1 + group, 128); }
  __device__ __forceinline__ static void sync_both() { ptx::bar_sync(1 + At::groups, 128 * At::groups); }
  // The block of columns of V that the nth accumulator belongs to. The second warpgroup begins with the
  // second half of the blocks.
  __device__ __forceinline__ int block(int n) const { return (n + At::blocks / 2 * group) % At::blocks; }
  __device__ __forceinline__ static int head(int c) { return lane_column() + At::Block::column(c); }

  // Computes Aᵀ of the tile whose first third is number `nth`, for the warp's 16 keys.
  __device__ __forceinline__ void multiply(At::Block& s, u32 nth) const {
#pragma unroll
    for (int n = 0; n < At::thirds; ++n) {
      // Loads may complete in any order. The previous third in this stage belongs to the other warpgroup. If
      // it had not arrived, a wait for this third would return immediately. This cannot happen for the other
      // stages. Within an item, this warpgroup has waited for their previous thirds. Both warpgroups have
      // waited for all thirds of earlier items.
      if (n == 0) shared.ring_k().acquire(nth);
      shared.ring_k().wait(nth + n);
      const At::K k = shared.third_of_k(nth + n);
      const At::ThirdOfQ q = shared.third_of_q(n);
      if (n == 0)
        begin_ABt<S, At::K::columns>(s, k, 0, q);
      else
        begin_adding_ABt<S, At::K::columns>(s, k, 0, q);
    }
    wait_for_products<0>();
    keep(s);
  }
  // Gᵀ += Vᵀ·Pᵀ
  __device__ __forceinline__ void add(At::Block (&g)[At::blocks], u32 nth) const {
#pragma unroll
    for (int n = 0; n < At::blocks; ++n) {
      const At::K v = shared.third_of_k(nth + block(n) / 3);
      begin_adding_AtBt<S, tile_keys>(g[n], v, block(n) % 3 * 64, shared.tile_p(group));
    }
    wait_for_products<0>();
#pragma unroll
    for (At::Block& part : g) keep(part);
  }
  // Stores P of the warp's keys, rounded, as [heads, keys].
  __device__ __forceinline__ void store_p(At::Block& s) const {
    const At::P p = shared.tile_p(group);
#pragma unroll
    for (int part = 0; part < s.parts; part += 2) {
      u32 packed[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float(&e)[4] = s.x[0][part + n / 2];
        packed[n] = pack(e[n % 2 * 2], e[n % 2 * 2 + 1], S());
      }
      const int n = lane_id() / 8;  // the lane addresses a row of 8-head group part + n / 2, keys 8·(n % 2) …
      ptx::stmatrix_trans(p.base + p.offset((part + n / 2) * 8 + lane_id() % 8, 2 * warp + n % 2), packed);
    }
  }

  __device__ __forceinline__ void run() {
    const Score<S> score(plan.factor, plan.cap);
    const bool plain = score.is_plain();
    const float factor = plain ? plan.factor : 1;
    OfWarps& of_warps = shared.of_group(group);
#pragma unroll 1
    for (;; ++items) {
      shared.ring_items().wait(items);
      const Item& item = shared.item_of(items);
      const int place = __reduce_max_sync(~0u, item.batch_head);
      if (place < 0) return;
      const KeyRange some = item.some;
      const int from = __reduce_max_sync(~0u, item.range.from), to = __reduce_max_sync(~0u, item.range.to);
      shared.ring_items().release(items);
      At::Block g[At::blocks];
#pragma unroll
      for (At::Block& part : g) part.fill(0);
      Softmax softmax;
      shared.ring_q().wait(items);
      const int last = to - 1 - (to - 1 + group) % At::groups;  // its last tile, which is the first to run
      if (last < from) shared.ring_q().release(items);
#pragma unroll 1
      for (int j = last; j >= from; j -= At::groups) {
        const u32 nth = thirds + (to - 1 - j) * At::thirds;  // the tile's first third
        At::Block s;
        multiply(s, nth);
        if (j - At::groups < from) shared.ring_q().release(items);
        if (!plain) score.template apply<true>(s);
        if (!covers(some, j * tile_keys, tile_keys)) {
#pragma unroll
          for (int r = 0; r < s.rows; ++r) {
            const int key = j * tile_keys + 16 * warp + lane_row() + s.row(r);
            if (key >= some.from && key < some.to) continue;
#pragma unroll
            for (int c = 0; c < columns; ++c) s(r, c) = -INFINITY;
          }
        }
#pragma unroll
        for (int c = 0; c < columns; ++c) {
          const float most = softmax.most(s, c);
          if (lane_row() == 0) of_warps.top[warp][head(c)] = most;
        }
        sync();
        float by[columns];
        bool moved = false;
#pragma unroll
        for (int c = 0; c < columns; ++c) {
          const float now = of_warps.most(head(c), softmax.top[c]);
          moved |= now != softmax.top[c];
          by[c] = softmax.move(c, now, factor);
#pragma unroll
          for (int r = 0; r < s.rows; ++r) s(r, c) = softmax.add(c, s(r, c), factor);
        }
        store_p(s);
        ptx::fence_async();
        sync();
        if (__any_sync(~0u, moved)) {
#pragma unroll
          for (At::Block& part : g)
#pragma unroll
            for (int c = 0; c < columns; ++c) scale_column(part, c, by[c]);
        }
        add(g, nth);
        __syncwarp();
        if (lane_id() < At::thirds) shared.ring_k().release_by_thread(nth + lane_id());
      }
      thirds += (to - from) * At::thirds;
      end(g, softmax, place, factor);
    }
  }

 private:
  // Stores O, c and π of the item. Each warpgroup stores half of the columns.
  __device__ __forceinline__ void end(At::Block (&g)[At::blocks], const Softmax& softmax, int place,
                                      float exponent) const {
    constexpr int half = At::blocks / 2, parts = At::Block::parts;
    OfWarps& own = shared.of_group(group);
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const float all = softmax.all(c);
      if (lane_row() == 0) own.sum[warp][head(c)] = all;
      if (lane_row() == 0 && warp == 0) own.top[0][head(c)] = softmax.top[c];
    }
    float4* const sent = shared.sent_by(group);
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int n = 0; n < half; ++n)
#pragma unroll
      for (int p = 0; p < parts; ++p) {
        const float(&e)[4] = g[half + n].x[0][p];
        sent[(n * parts + p) * 128 + thread] = {e[0], e[1], e[2], e[3]};
      }
    sync_both();
    float by[columns], by_other[columns];  // factors of the accumulators
    const Partial to = Partial{plan.o, plan.lse, x.L, x.dv}.after(place);
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const float first = shared.of_group(0).top[0][head(c)], second = shared.of_group(1).top[0][head(c)],
                  most = fmaxf(first, second), w0 = exp_of_difference(first, shown(most), exponent),
                  w1 = exp_of_difference(second, shown(most), exponent),
                  all = fmaf(w1, shared.of_group(1).pi(head(c)), w0 * shared.of_group(0).pi(head(c))),
                  inverse = all > 0 ? reciprocal(all) : all;
      by[c] = (group == 0 ? w0 : w1) * inverse, by_other[c] = (group == 0 ? w1 : w0) * inverse;
      if (group == 0 && warp == 0 && lane_row() == 0 && head(c) < x.L) to.of_row[head(c)] = {most, all};
    }
    const float4* const received = shared.sent_by(1 - group);
#pragma unroll
    for (int n = 0; n < half; ++n)
#pragma unroll
      for (int p = 0; p < parts; ++p) {
        const float4 other = received[(n * parts + p) * 128 + thread];
        const float more[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int c = 2 * p + e % 2, column = 64 * block(n) + 16 * warp + lane_row() + e / 2 * 8;
          const float o = fmaf(by_other[c], more[e], by[c] * g[n].x[0][p][e]);
          if (head(c) < x.L && column < x.dv) *to.at(head(c), column) = o;
        }
      }
    sync_both();  // neither warpgroup may send again earlier
  }
};

template <class S>
__global__ void __launch_bounds__(At::threads, 1)
    attend(const __grid_constant__ AttentionCall x, const __grid_constant__ Plan plan, Faults faults) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  TG_DYNAMIC_SHARED(memory, 1024);
  const Shared shared{memory};
  ptx::let_next_kernel_begin();
  if (threadIdx.x == 0) shared.init();
  if (threadIdx.x == 32) ptx::prefetch(&plan.q);
  if (threadIdx.x == 64 && plan.box_rows > 0) ptx::prefetch(&plan.k);
  __syncthreads();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
  if (group > 0) {
    ptx::wait_for_kernel_before();
    // Checks the inputs while the first keys are loading.
    if (plan.tiles.first == 0) check_places(x, faults, threadIdx.x - 128, 128 * At::groups);
    Consumer<S>{shared, x, plan, group - 1, warp}.run();
  } else if (warp == 0) {
    load(shared, x, plan);
  } else if (warp == 1) {
    schedule(shared, x, plan);
  } else if (warp == 2) {
    load_by_rows<S>(shared, x, plan);
  } else {
    load_queries(shared, x, plan);
  }
#endif
}

// Creates the tensor map of keys if pages are contiguous in memory. Its axes are 64 columns, 8 rows, the
// blocks of 64 columns, and the groups of 8 rows in the whole pool. Otherwise all tiles are copied row by
// row.
inline void set_boxes(Plan& plan, const AttentionCall& x) {
  const bool dense = x.page % 8 == 0 && (x.pool == 1 || x.k.batch == x.page * x.k.row) &&
                     i64{x.pool} * x.page / 8 <= INT32_MAX;
  if (!dense) plan.box_rows = 0;
  if (plan.box_rows == 0) return;
  const AttentionCall::TensorView groups{x.k.data, 8 * x.k.row, 64, x.k.row};
  plan.k = tensor_map(x.type, groups, i64{x.pool} * x.page / 8, x.d / 64, 8, 64, 8, ThirdOfTile::blocks,
                      plan.box_rows / 8);
}

}  // namespace latents_16_sm90

void launch_few_latents_sm90(const Stream& s, const AttentionCall& call, const Workspace& work) {
  using namespace latents_16_sm90;
  const AttentionCall x = decoding::in_pages(call);
  Plan plan = plan_of(x, work, At::rows);
  set_boxes(plan, x);
  with_16_bits(x.type, [&](auto zero) {
    using S = decltype(zero);
    launch_items<S>(s, x, plan, At::threads, Shared::bytes, attend<S>);
  });
}

}  // namespace tg::cuda::attention
