// The backward on Hopper for bf16, f16, and f32 split into f16: preparation, a single pass over the keys, and
// conversion of the z_Q accumulators.
#include "backends/cuda/attention/backward/backward_192_sm90.cuh"
#include "backends/cuda/attention/backward/backward_sm90.cuh"
#include "backends/cuda/attention/backward/backward_wide_sm90.cuh"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/stages/far_rows.cuh"
#include "backends/cuda/attention/stages/row_dot.cuh"
#include "backends/cuda/kernels/launch.cuh"

namespace tg::cuda::attention {

namespace backward_sm90 {

// Prepares a query tile of a head. Computes u = (O ⊛ z_O).sum − z_ξ [Stratos, Lemma 2.1], converts ξ, and
// sets the counters of additions to 0. Blocks of head 0 also store the keys that the queries see. With
// last_stores, no block stores z_Q of a tile without visible keys. It is therefore set to 0 here.
template <class S, class At>
__global__ void __launch_bounds__(256) prepare(const __grid_constant__ AttentionCall x,
                                               const __grid_constant__ Workspace work, const Powers* powers) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if (At::last_stores) ptx::let_next_kernel_begin(), ptx::wait_for_kernel_before();
  using R = Result<S, At>;
  constexpr int queries = At::queries, V = 16 / sizeof(R);
  using Stage = Rows<queries>;
  const int tiles = (x.L + queries - 1) / queries, tile = blockIdx.x % tiles, bh = blockIdx.x / tiles,
            h = bh % x.H, b = bh / x.H, i0 = tile * queries;
  if (threadIdx.x < At::blocks) work.counters[blockIdx.x * At::blocks + threadIdx.x] = 0;
  float4* const sums = reinterpret_cast<float4*>(work.z_q + i64{blockIdx.x} * At::sums);
  for (int n = threadIdx.x; x.nondeterministic && n < At::sums / 4; n += blockDim.x)
    sums[n] = float4{0, 0, 0, 0};
  const Powers* const p = powers + b * x.Hk + h / (x.H / x.Hk);
  const float unit = At::split ? power_of_two(-p->z_o) : 1;  // scale of z_O
  float* const to = work.rows + i64{blockIdx.x} * Stage::floats;
  for_each_u<R, V, queries, At::terms, S>(x, work, b, h, i0, unit, [&](int r, i64 row, bool inside, float u) {
    const float lse = inside ? static_cast<const float*>(x.lse)[row] : -INFINITY;
    to[r] = lse == -INFINITY || is_far(x.type, lse)
                ? INFINITY
                : lse * static_cast<float>(log2_e) - (At::split ? Powers::room_for_p : 0);
    to[queries + r] = At::split ? times_power_of_two(u, p->z_o + p->v + power_of_difference(*p)) : u;
  });
  mark_far_rows<R, queries>(x, work, b, h, i0);  // ξ is in the L1 cache now
  if (h > 0 && !At::last_stores) return;
  __shared__ VisibleKeys<queries> seen;
  const auto [some, every] = seen.set_and_unite(x, b, i0);
  if (At::last_stores && some.from == some.to) {
    R* const z_q = x.z_q.at<R>(b, h);
    for (int n = threadIdx.x; n < queries * x.d; n += blockDim.x)
      if (i0 + n / x.d < x.L) z_q[(i0 + n / x.d) * x.z_q.row + n % x.d] = R(0.f);
  }
  if (h > 0) return;
  const i64 at = i64{b} * tiles + tile;
  int* const keys = work.seen + at * Stage::ints;
  for (int n = threadIdx.x; n < queries; n += blockDim.x)
    keys[n] = seen.first[n], keys[queries + n] = seen.last[n];
  if (threadIdx.x > 0) return;
  keys[2 * queries] = every.from, keys[2 * queries + 1] = every.to;
  keys[2 * queries + 2] = some.from, keys[2 * queries + 3] = some.to;
  work.some[at] = {some.from, some.to};
#endif
}

template <class S, class At, Options options>
using ConsumerOf = std::conditional_t<
    At::terms == 2, F16SplitConsumer<S, At, options>,
    std::conditional_t<At::D == 192, Consumer192<S, At, options>,
                       std::conditional_t<At::wide, WideConsumer<S, At, options>, Consumer<S, At, options>>>>;

template <class S, class At, Options options>
__global__ void __launch_bounds__(At::threads, 1)
    gradients(const __grid_constant__ AttentionCall x, const __grid_constant__ Workspace work,
              const __grid_constant__ PlanOf<At> plan, const Sections sections) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  TG_DYNAMIC_SHARED(memory, 1024);
  const Shared<At> shared{memory};
  if (threadIdx.x == 0) shared.init(plan.nondeterministic);
  if (At::last_stores) ptx::wait_for_kernel_before();
  const Block<S, At> block{shared, x, work, plan};
  if (threadIdx.x < 32) block.keep_rows(sections.place(blockIdx.x / At::blocks, false));
  if constexpr (At::blocks > 1)
    ptx::cluster_arrive(), ptx::cluster_wait();
  else
    __syncthreads();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), warp = threadIdx.x / 32 % 4;
  if (group == 0) {
    ptx::give_registers<At::producer_registers>();
    if (lane_id() == 0) {
      if (warp == 0) block.load();
      if (warp == 1 && !plan.nondeterministic) block.await_tickets();
      if (warp == 2 && !plan.nondeterministic) block.end_tickets();
      if constexpr (At::blocks > 1)
        if (warp == 3) block.pass_z_a();
    }
  } else {
    ptx::take_registers<At::consumer_registers>();
    ConsumerOf<S, At, options>{{block, group - 1}}.run();
  }
  if constexpr (At::blocks > 1) {  // the other block may still access this block's shared memory
    __syncwarp();
    ptx::cluster_arrive(), ptx::cluster_wait();
  }
#endif
}

// Rounds z_Q of a tile from its accumulators, with the same thread layout as gradients(). Not needed with
// last_stores.
template <class S, class At>
__global__ void __launch_bounds__(256)
    round_query_gradients(const __grid_constant__ AttentionCall x, const __grid_constant__ Workspace work,
                          const Powers* powers, const __grid_constant__ RopesOf<At> ropes) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const int tiles = (x.L + At::queries - 1) / At::queries, tile = blockIdx.x % tiles, bh = blockIdx.x / tiles;
  const float4* const sums = reinterpret_cast<const float4*>(work.z_q + i64{blockIdx.x} * At::sums);
  const int2 some = work.some[bh / x.H * tiles + tile];
  const bool any = some.x < some.y;
#pragma unroll 1
  for (int nth = threadIdx.x / 128; nth < At::parts; nth += 2) {
    typename At::ZQ part;
#pragma unroll
    for (int k = 0; k < part.parts; ++k) {
      const float4 v = any ? __ldcs(sums + nth * (At::sums_between / 4) + k * 128 + threadIdx.x % 128)
                           : float4{0, 0, 0, 0};
      part.x[0][k][0] = v.x, part.x[0][k][1] = v.y, part.x[0][k][2] = v.z, part.x[0][k][3] = v.w;
    }
    const int i0 = tile * At::queries, row = threadIdx.x % 128 / 32 * 16;
    store_z_q<S, At>(part, x, powers, Factors<At>(ropes, i0 + nth * 64 + row), bh / x.H, bh % x.H, i0, nth,
                     row);
  }
#endif
}

template <class S, class At, Options options>
void launch(const Stream& s, const AttentionCall& x, const Workspace& work, const Powers* powers,
            const RopesOf<At>& ropes = {}) {
  const auto map = [&](const AttentionCall::TensorView& a, bool keys, int size) {
    return tensor_map(x.type, a, x.B, keys ? x.Hk : x.H, keys ? x.T : x.L, size_in_memory<At>(a, size),
                      keys ? At::keys : At::queries);
  };
  const i64 tiles = i64{x.B} * x.H * ((x.L + At::queries - 1) / At::queries);
  LaunchShape for_tiles{blocks_for(tiles, 1), 256};
  for_tiles.early = At::last_stores;
  if (tiles > 0) launch_kernel(s, for_tiles, prepare<S, At>, x, work, powers);
  constexpr int keys = At::keys * At::blocks;
  Sections sections{(x.T + keys - 1) / keys, 1, x.Hk, static_cast<int>(x.B) * x.Hk, keys};
  // Number of a head's blocks that run concurrently. With a mask, blocks with later keys start at later
  // tiles. In deterministic mode they would wait there for blocks with earlier keys.
  const int at_a_time = is_uneven(x) && !x.nondeterministic ? At::together_in_order(sections.blocks)
                                                            : std::clamp(sections.blocks, 1, 33 / At::blocks);
  sections.together =
      std::clamp(s.gpu.processors / At::blocks / at_a_time, 1, std::max(sections.all_heads, 1));
  if (sections.all() > 0) {
    const PlanOf<At> plan{
        {map(x.q, false, x.d), map(x.k, true, x.d), map(x.v, true, x.dv), map(x.z_o, false, x.dv), x.H / x.Hk,
         (x.L + At::queries - 1) / At::queries, static_cast<float>(factor_of(x)),
         static_cast<float>(cap_of(x)), static_cast<float>(x.scale), x.nondeterministic, powers},
        ropes};
    LaunchShape for_keys{static_cast<unsigned>(sections.all() * At::blocks), At::threads, Shared<At>::bytes};
    for_keys.early = At::last_stores;
    for_keys.cluster = At::blocks;
    launch_kernel(s, for_keys, gradients<S, At, options>, x, work, plan, sections);
  }
  if constexpr (!At::last_stores)
    if (tiles > 0) launch_kernel(s, for_tiles, round_query_gradients<S, At>, x, work, powers, ropes);
}

// Launches the kernel for a padded head size.
template <class S, int size, Numbers numbers>
void launch_size(const Stream& s, const AttentionCall& x, const Workspace& work, const Powers* powers) {
  constexpr int of_v = values_beside(size);
  if constexpr (size <= 128 && numbers != two_f16)
    if (last_stores(x)) return launch<S, TileShape<size, of_v, true, numbers>, none>(s, x, work, powers);
  with_constant<none, any>(x.softcap != 0 ? any : none, [&](auto options) {
    launch<S, TileShape<size, of_v, false, numbers>, options>(s, x, work, powers);
  });
}

}  // namespace backward_sm90

void launch_backward_sm90(const Stream& s, const AttentionCall& x, const Workspace& work,
                          const Powers* powers) {
  using namespace backward_sm90;
  if (powers)
    return with_constant<64, 128>(work.width, [&](auto size) {
      has_two_f16(x) ? launch_size<__half, size, two_f16>(s, x, work, powers)
                     : launch_size<__half, size, one_f16>(s, x, work, powers);
    });
  with_16_bits(x.type, [&](auto zero) {
    with_constant<64, 128, 192, 256>(
        work.width, [&](auto size) { launch_size<decltype(zero), size, of_16_bits>(s, x, work, nullptr); });
  });
}

void launch_rotated_backward_sm90(const Stream& s, const AttentionCall& x, const Workspace& work,
                                  const Ropes& ropes) {
  using namespace backward_sm90;
  AttentionCall to = x;
  to.z_q = ropes.q, to.z_k = ropes.k;
  with_16_bits(x.type, [&](auto zero) {
    with_constant<false, true>(last_stores(x), [&](auto last) {
      launch<decltype(zero), Rotated<TileShape<64, 64, bool(last)>>, none>(s, to, work, nullptr, ropes);
    });
  });
}

}  // namespace tg::cuda::attention
