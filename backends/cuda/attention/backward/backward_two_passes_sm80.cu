// The backward on tensor cores (FlashAttention-2) [Stratos, FlashAttention §D] without atomics: one pass over
// keys for z_K and z_V, and one pass over queries for z_Q. A block keeps some rows of one side and loops over
// tiles of the other side. Both passes recompute
//
//   P = exp(A − ξ),  z_A = P ⊛ (keep ⊛ z_P − u),  A from q·k, z_P = z_O·Vᵀ
//
// in registers. In these tiles, rows are the kept rows and columns are the rows of the other side. The next
// GEMM needs its left operand in this layout. Supports bf16, f16, and f32 split into f16. Split operands are
// scaled by powers of two, and the dropout factor 1/(1 − p) is applied at the end. Head size 96 has no
// separate kernels, because they would increase compile time and only few or short sequences use them.
#include "backends/cuda/attention/backward/backward_memory_sm80.cuh"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/shapes.h"
#include "backends/cuda/attention/stages/epilogue.cuh"
#include "backends/cuda/tile/mma_sm80.cuh"

namespace tg::cuda::attention {

namespace two_passes {

using namespace tile;

// The results of a block: z_K, z_V or both for its keys, or z_Q for its queries.
enum Pass { for_keys_and_values, for_keys, for_values, for_queries };

// Tiling of the four warps: the number of 16-row groups per warp on the kept side, and the rows per tile on
// the other side. If both are larger, an MMA reads less shared memory. For each group, a thread needs D / 2
// registers per accumulator, and `passing` registers for P and z_A together. If operands are split, P and z_A
// need 3·passing registers. A thread needs about 80 other registers.
struct Cut {
  int groups, passing;
  int blocks;  // blocks per multiprocessor; 0: any number. A given number may cause register spills
};
template <Numbers numbers, Pass pass, int D, Options options>
consteval Cut cut() {
  constexpr bool by_query = pass == for_queries, plain = options == none,
                 drops_only = options == only_dropout;
  if (numbers != of_16_bits) {
    constexpr bool one = numbers == one_f16, simple = plain && one;
    return {D <= 64 && one && (plain || (by_query && drops_only)) ? 2 : 1,
            D > 64               ? 16
            : by_query && simple ? 64
                                 : 32,
            simple && D == 64 ? 0 : 2};
  }
  constexpr bool small = D == 32 && options == any;
  if (by_query) return {2, small || (!plain && D > 64) ? 16 : plain && D <= 64 ? 64 : 32, 0};
  return {D <= 64 && options != any ? 2 : 1,
          plain && D > 64                    ? 64
          : small || (D == 64 && drops_only) ? 16
                                             : 32,
          0};
}

template <Numbers numbers, Pass pass, int D, Options options>
struct TileShape {
  static constexpr bool by_query = pass == for_queries, split = numbers != of_16_bits,
                        makes_a = pass != for_values,
                        makes_v = pass == for_keys_and_values || pass == for_values;
  // Recomputes the key head for each tile, because no register is free to hold it.
  static constexpr bool divides = D == 64;
  static constexpr Cut c = cut<numbers, pass, D, options>();
  static constexpr int threads = 128, rows = 16 * c.groups, kept = threads / 32 * rows, passing = c.passing,
                       queries = by_query ? kept : passing, keys = by_query ? passing : kept;
  static constexpr int terms = numbers == two_f16 ? 2 : 1, a_width = terms * D, b_width = a_width;
  static constexpr int kept_a = 0, kept_b = kept * a_width * 2, stages = 2 * kept_b,
                       passing_b = passing * a_width * 2, stage = 2 * passing_b, stats = stages + 2 * stage,
                       seen = stats + (by_query ? 1 : 2) * queries * int(sizeof(float2)),
                       bytes = seen + int(sizeof(VisibleKeys<queries>));
};

// A block computes gradients for some keys of a key head or for some queries of a head. For keys, it loops
// over the query heads of the group. For keys, a is K and b is V. For queries, a is Q and b is z_O.
template <class S, class R, Numbers numbers, Pass pass, int D, Options options>
__global__ void __launch_bounds__(TileShape<numbers, pass, D, options>::threads,
                                  TileShape<numbers, pass, D, options>::c.blocks)
    gradients(const __grid_constant__ AttentionCall x, const Workspace work, const Powers* all_powers) {
  TG_DYNAMIC_SHARED(memory, 1024);
  using At = TileShape<numbers, pass, D, options>;
  using T = Terms<S, At::terms>;
  constexpr bool by_query = At::by_query;
  constexpr int passing = At::passing, steps = At::split || by_query || arch < 900 ? 4 : 8;
  const BackwardMemory<S, At> shared{memory};
  const auto [batch_head, b, head, kept0] =
      by_query ? query_position(x, blockIdx.x, At::kept) : key_position(x, blockIdx.x, At::kept);
  const int row = threadIdx.x / 32 * At::rows, group = x.H / x.Hk, key_head = by_query ? head / group : head;

  const Traversal range =
      traversal<by_query, At::kept, passing>(x, work, b, head, kept0, shared.seen(), shared.stats(0));
  shared.load_kept(x, b, head, range.kept, kept0);

  Accumulator<At::rows, D> sums_a, sums_v;  // z_K or z_Q, and z_V
  sums_a.fill(0), sums_v.fill(0);
  Dropout<float> dropout(x);
  const Powers* powers = At::split ? all_powers + b * x.Hk + key_head : nullptr;
  float q_k = 1;  // the factor of q·k
  HeldTimes held;
  if constexpr (At::split) {
    q_k = power_of_two(-powers->q - powers->k);
    held = {power_of_two(Powers::room_for_p), power_of_two(Powers::room_for_z_a + powers->z_a)};
    dropout.kept = 1;
  }
  const int all = max(range.last - range.first, 0) * (by_query ? 1 : group);
  Cursor next{range.first, by_query ? head : head * group};
  Pipeline pipe(2, 0, all, [&](int n) {
    const int h = !by_query ? next.h : At::divides ? next.h / group : key_head;
    shared.load_passing(x, work, b, h, range.passing, next.tile * passing, n % 2);
  });
  for (int n = 0; n < all; ++n) {
    const Cursor at = next;
    next = at.after(range.first, range.last, range.first);
    pipe.wait(n);
    const int passing0 = at.tile * passing, stage = n % 2, i0 = by_query ? kept0 : passing0,
              j0 = by_query ? passing0 : kept0;
    const bool masked = needs_mask<by_query, At::keys>(shared.seen(), x, work, b, i0, j0, range.every);
    Accumulator<At::rows, passing> p, za;
    p.fill(0), begin<options, by_query>(za, shared.stats(stage), row, 0);
    mma_ABt<T, Ahead::none, steps>(p, shared.kept_a(), row, shared.passing_a(stage));  // q·k
    if constexpr (At::makes_a)
      mma_ABt<T, Ahead::none, steps>(za, shared.kept_b(), row, shared.passing_b(stage));  // z_P = z_O·Vᵀ
    Score<R> score = Score<R>::template of_call<options>(x, b, at.h);
    score.factor *= q_k;
    const ScoreGradient<R, options, by_query> score_gradient{
        x, score, dropout, shared.stats(stage), b * x.H + at.h, i0, j0, held};
    Accumulator<At::rows, passing> slopes;
    // A = −∞ if a query does not see a key. With a softcap or bias, P is set to 0 afterwards instead.
    if (masked && options != any) mask<by_query>(p, shared.seen(), row, 0, j0);
    score_gradient.probabilities(p, slopes, row, 0);
    if (masked && options == any) mask<by_query>(p, shared.seen(), row, 0, j0, 0);
    score_gradient.gradients(p, za, slopes, row, 0);                           // P ⊛ keep, z_A
    if constexpr (At::makes_v) mma_AB<T>(sums_v, p, shared.passing_b(stage));  // z_V += (P ⊛ keep)ᵀ·z_O
    if constexpr (At::makes_a) mma_AB<T>(sums_a, za, shared.passing_a(stage));  // z_K += z_Aᵀ·Q, z_Q += z_A·K
  }
  wait();
  if (!At::split) __syncthreads();  // results are staged in the kept tiles
  const Powers p = At::split ? *powers : Powers{};
  const float kept = At::split && options != none ? Dropout<float>(x).kept : 1;
  const int row0 = kept0 + row, rows = by_query ? x.L : x.T;
  if constexpr (At::makes_a) {
    const AttentionCall::TensorView& out = by_query ? x.z_q : x.z_k;
    const int e = -p.of_z_a() - (by_query ? p.k : p.q);
    scale(sums_a, static_cast<float>(x.scale) * kept, At::split ? e : 0);
    store(sums_a, shared.kept_a(), row, out.at<R>(b, head), out.row, row0, rows, x.d);
  }
  if constexpr (At::makes_v) {
    scale(sums_v, kept, At::split ? -Powers::room_for_p - p.z_o : 0);
    store(sums_v, shared.kept_b(), row, x.z_v.at<R>(b, head), x.z_v.row, row0, rows, x.dv);
  }
}

template <class S, class R, Numbers numbers, int D, Options options>
void launch(const Stream& s, const AttentionCall& x, const Workspace& work, const Powers* powers) {
  const auto run = [&](auto pass, i64 heads, i64 rows) {
    using At = TileShape<numbers, pass, D, options>;
    const i64 blocks = x.B * heads * ((rows + At::kept - 1) / At::kept);
    if (blocks > 0)
      launch_kernel(s, {blocks_for(blocks, 1), At::threads, At::bytes},
                    gradients<S, R, numbers, pass, D, options>, x, work, powers);
  };
  if constexpr (numbers == two_f16 && D > 64) {  // registers cannot hold both accumulators together
    run(std::integral_constant<Pass, for_keys>(), x.Hk, x.T);
    run(std::integral_constant<Pass, for_values>(), x.Hk, x.T);
  } else {
    run(std::integral_constant<Pass, for_keys_and_values>(), x.Hk, x.T);
  }
  run(std::integral_constant<Pass, for_queries>(), x.H, x.L);
}

}  // namespace two_passes

void launch_two_passes(const Stream& s, const AttentionCall& x, const Workspace& work, const Powers* powers) {
  with_shape<32, 64, 128>(x, [&](auto size, auto, auto options) {
    if (!powers)
      with_16_bits(x.type, [&](auto zero) {
        using S = decltype(zero);
        two_passes::launch<S, S, of_16_bits, size, options>(s, x, work, nullptr);
      });
    else if (x.tf32)
      two_passes::launch<__half, float, one_f16, size, options>(s, x, work, powers);
    else
      two_passes::launch<__half, float, two_f16, size, options>(s, x, work, powers);
  });
}

}  // namespace tg::cuda::attention
