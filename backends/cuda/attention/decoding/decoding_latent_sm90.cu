// Decoding of latents by wgmma if many heads share a key head. The roles are the same as in
// forward_576_sm90.cuh. Items are defined in decoding_latent_items_sm90.cuh. An item has up to 64 heads of a
// query.
#include "backends/cuda/attention/decoding/decoding_latent_items_sm90.cuh"
#include "backends/cuda/attention/forward/forward_576_sm90.cuh"
#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

namespace latents_sm90 {

using At = forward_576_sm90::TileShape<true>;
static_assert(At::keys == tile_keys && At::V::columns == most_values);
// The loading warps also look up pages here, so they need more registers than in the forward. The score
// warpgroup needs fewer registers than it has at launch.
constexpr int producer_registers = 48, scorer_registers = 112;
static_assert(producer_registers + scorer_registers + 2 * At::adder_registers <= 512);

struct Item : forward_sm90::Item<1> {
  int query;  // query of its sequence; h is the item's first head
  // Called by one warp.
  __device__ __forceinline__ void set_seen(KeyRange keys) {
#pragma unroll
    for (int row = 0; row < At::queries; row += 32)
      seen.first[row + lane_id()] = keys.from, seen.last[row + lane_id()] = keys.to;
    if (lane_id() == 0) i0 = 0, sink = -INFINITY, every[0] = keys;
  }
};
struct Shared : forward_576_sm90::Shared<At, Item> {
  using Base = forward_576_sm90::Shared<At, Item>;
  static constexpr int handed_on = aligned(Base::bytes, 8), bytes = handed_on + Ring<At::k_stages>::bytes;
  static_assert(bytes <= 227 << 10);
  // Tiles of keys with empty stages that the second loading warp fills, numbered among these tiles.
  __device__ Ring<At::k_stages> ring_handed_on() const { return {base + handed_on}; }
  __device__ void init() const { ring_handed_on().init(1), Base::init(2); }
};

// Warp that loads tiles of queries, and tiles of keys in whole boxes.
__device__ __forceinline__ void load(const Shared& shared, const AttentionCall& x, const Plan& plan) {
  using forward_576_sm90::third, forward_576_sm90::Third;
  // Announces a load that the first lane starts.
  const auto expect = [](auto to, auto ring, u32 use) {
    __syncwarp();  // all lanes saw the empty stage; once it is filled, consumers may empty it again
    if (lane_id() == 0) ring.expect(use, to.bytes);
  };
  u32 tiles = 0, handed_on = 0;
  each_item(shared, x, [&](Source& from, u32 items) {
    shared.ring_q().acquire(items);
#pragma unroll 1
    for (int j = from.range.to - 1; j >= from.range.from; --j, ++tiles) {
      const bool by_rows = from.by_rows(plan, j);
      const int row0 = j * At::keys;
      if (!by_rows) from.place.look_up(x, row0 + lane_id() * plan.box_rows, {row0, row0 + At::keys});
      shared.ring_k().acquire(tiles);
      if (by_rows) shared.ring_handed_on().announce_by_warp(handed_on++);
#pragma unroll 1
      for (int n = 0; n < At::thirds; ++n) {
        const int column0 = n * Third<At::K>::columns;
        if (j == from.range.to - 1) {
          const auto to = third(shared.tile_q(), n);
          expect(to, shared.ring_q(n), items);
          if (lane_id() == 0)
            load_boxes(to, plan.q, shared.ring_q(n).full(items), from.head, from.query, from.place.b,
                       column0);
        }
        if (by_rows) continue;
        const auto to = third(shared.tile_k(tiles), n);
        expect(to, shared.ring_k(n), tiles);
        load_keys(to, plan, shared.ring_k(n).full(tiles), from.place, column0);
      }
    }
  });
}

// Warp that copies the other tiles of keys row by row.
template <class S>
__device__ __forceinline__ void load_by_rows(const Shared& shared, const AttentionCall& x, const Plan& plan) {
  u32 tiles = 0, handed_on = 0;
  each_item(shared, x, [&](Source& from, u32) {
#pragma unroll 1
    for (int j = from.range.to - 1; j >= from.range.from; --j, ++tiles) {
      if (!from.by_rows(plan, j)) continue;
      shared.ring_handed_on().wait(handed_on++);
      const At::K to = shared.tile_k(tiles);
      copy_keys<S>([&](int c, int row, int piece) { return to.base + At::K::offset(row, 8 * c + piece); }, x,
                   from.place, j * At::keys, from.some);
      if (lane_id() < At::thirds) shared.ring_k(lane_id()).announce(tiles);
    }
  });
}

template <class S>
__global__ void __launch_bounds__(At::threads, 1)
    attend(const __grid_constant__ AttentionCall x, const __grid_constant__ Plan plan, Faults faults) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  TG_DYNAMIC_SHARED(memory, 1024);
  const Shared shared{{memory}};
  ptx::let_next_kernel_begin();
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  ptx::wait_for_kernel_before();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), row = static_cast<int>(threadIdx.x / 32 % 4) * 16;
  using namespace forward_576_sm90;
  if (group == 0) {
    ptx::give_registers<producer_registers>();
    if (threadIdx.x < 32)
      latents_sm90::load(shared, x, plan);
    else if (threadIdx.x < 64)
      latents_sm90::schedule(shared, x, plan);
    else if (threadIdx.x < 96)
      load_by_rows<S>(shared, x, plan);
    else if (plan.tiles.first == 0)
      check_places(x, faults, lane_id(), 32);
  } else if (group == 1) {
    ptx::give_registers<scorer_registers>();
    Scorer<S, At, latents_sm90::Shared>{shared, x, plan, row}.run();
  } else {
    ptx::take_registers<At::adder_registers>();
    using Sums = Adder<S, At, latents_sm90::Shared>;
    Sums{shared, x, plan, row, (group - 2) * Sums::columns}.run();
  }
#endif
}

}  // namespace latents_sm90

void launch_latents_sm90(const Stream& s, const AttentionCall& call, const Workspace& work, const Powers*) {
  if (decoding::takes_few_heads(call)) return launch_few_latents_sm90(s, call, work);
  using namespace latents_sm90;
  const AttentionCall x = decoding::in_pages(call);
  Plan plan = plan_of(x, work, At::queries);
  if (plan.box_rows > 0) plan.k = tensor_map(x.type, x.k, x.pool, x.Hk, x.page, x.d, plan.box_rows);
  with_16_bits(x.type, [&](auto zero) {
    using S = decltype(zero);
    launch_items<S>(s, x, plan, At::threads, Shared::bytes, attend<S>);
  });
}

}  // namespace tg::cuda::attention
