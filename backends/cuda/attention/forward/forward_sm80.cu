// The forward on tensor cores (FlashAttention-2) [Stratos, FlashAttention §D]. One block computes some
// queries of a head. It prefetches a key tile while it processes the previous tile.
//
//   c ← max(c, A.max), π ← exp(c_old − c)·π + exp(A − c).sum, G ← exp(c_old − c)·G + exp(A − c)·V
//   O = G ⊘ π, ξ = c + log π
//
// Operands are bf16, f16, or f32 split into f16 (split_to_f16.cu). Two f16 values per element give f32
// accuracy; one gives TF32's 10 fraction bits. P is at most 2⁸, so it needs no scaling for split operands.
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/shapes.h"
#include "backends/cuda/attention/stages/dropout.cuh"
#include "backends/cuda/attention/stages/epilogue.cuh"
#include "backends/cuda/attention/stages/schedule.cuh"
#include "backends/cuda/attention/stages/softmax.cuh"
#include "backends/cuda/attention/stages/visible_keys.cuh"
#include "backends/cuda/tile/mma_sm80.cuh"
#include "backends/cuda/tile/pipeline_sm80.cuh"

namespace tg::cuda::attention {

namespace forward {

using namespace tile;

// Whether block-uniform addresses can be kept in uniform registers. Otherwise they occupy registers of every
// thread.
constexpr bool has_uniform_addresses = arch >= 900;

// Operands have type S, results type R. `stages` is 1 or 2.
template <class S, class R, Numbers numbers, int D, int DV, Options options>
__global__ void __launch_bounds__(TileShape<numbers, D, DV, options>::threads,
                                  TileShape<numbers, D, DV, options>::blocks)
    attend(const __grid_constant__ AttentionCall x, const Powers* all_powers, int stages, float2 unit) {
  TG_DYNAMIC_SHARED(memory, 1024);
  using At = TileShape<numbers, D, DV, options>;
  constexpr bool split = At::split;
  constexpr int keys = At::keys, queries = At::queries, rows = At::rows, threads = At::threads,
                width = At::terms * D, v_width = At::terms * DV;
  // Operands of Q·Kᵀ are prefetched from shared memory as far ahead as registers allow.
  constexpr Ahead ahead = At::alternating ? Ahead::step : split || At::wide ? Ahead::none : Ahead::rows_of_b;
  constexpr int unrolled = split                              ? 4
                           : At::alternating                  ? D / 16
                           : At::wide                         ? 2
                           : has_uniform_addresses || D < 128 ? D / 16
                                                              : 64 / keys;
  // c is kept as a score in two cases. With a bias, an exponent might overflow. At head size 128 or more, no
  // register is left for an exponent.
  constexpr bool by_scores = options == any || (D >= 128 && !split);
  using T = Terms<S, At::terms>;
  if (!At::wide) stages = 2;
  auto& seen = *reinterpret_cast<VisibleKeys<queries>*>(memory + At::seen);
  const u32 base = shared_address(memory);
  const SharedTile<width> tile_q{base};
  const auto stage = [&](int n) { return base + At::stages + (stages == 2 ? n % 2 : 0) * At::stage; };
  const auto tile_k = [&](int n) { return SharedTile<width>{stage(n)}; };
  const auto tile_v = [&](int n) { return SharedTile<v_width>{stage(n) + At::v}; };
  const auto [bh, b, h, i0] = query_position(x, blockIdx.x, queries);
  const int warp = threadIdx.x / 32, row = warp / At::splits * rows, column = warp % At::splits * At::columns;
  const int key_head = h / (x.H / x.Hk), d = split ? width : x.d, dv = split ? v_width : x.dv;

  load_rows<queries, threads>(tile_q, x.q.at<S>(b, h), x.q.row, i0, 0, x.L, d);
  commit();  // required even in blocks that load no keys
  const auto [some, every] = seen.set_and_unite(x, b, i0);

  Accumulator<rows, At::columns> o;
  o.fill(0);
  Score<R> score = Score<R>::template of_call<options>(x, b, h);
  Dropout<float> dropout(x);
  const float kept = dropout.kept;
  int e = 0;
  float unit_of_score = 1;
  if constexpr (split) {
    const Powers powers = all_powers[b * x.Hk + key_head];
    unit_of_score = power_of_two(-powers.q - powers.k);
    score.factor *= unit_of_score;
    e = -powers.v;
    dropout.kept = 1;  // the factor 1/(1 − p) is applied at the end
  }
  OnlineSoftmax<rows, false, by_scores> softmax(
      x.sink ? widen(static_cast<const R*>(x.sink)[h]) : -INFINITY, score.template exponent<options>(),
      options == any ? 1 : static_cast<float>(x.scale) * unit_of_score);
  const Tiles tiles(some, keys);
  const S *k = x.k.at<S>(b, key_head), *v = x.v.at<S>(b, key_head);
  const auto load_keys = [&](int n) {
    load_rows<keys, threads>(tile_k(n), k, x.k.row, n * keys, some.from, some.to, d);
    if constexpr (At::alternating) commit();
  };
  const auto load_values = [&](int n) {
    load_rows<keys, threads>(tile_v(n), v, x.v.row, n * keys, some.from, some.to, dv);
    commit();
  };
  auto pipe = [&] {
    if constexpr (At::alternating)
      return AlternatingPipeline(tiles.from, tiles.to, load_keys, load_values);
    else
      return Pipeline(stages, tiles.from, tiles.to, [&](int n) { load_keys(n), load_values(n); });
  }();
  for (int n = tiles.from; n < tiles.to; ++n) {
    pipe.wait(n);
    const int j0 = n * keys;
    Accumulator<rows, keys> s;
    s.fill(0);
    mma_ABt<T, ahead, unrolled>(s, tile_q, row, tile_k(n));  // S = Q·Kᵀ
    if constexpr (options == any) score.apply(s, x, i0 + row, j0);
    if (!covers(every, j0, keys)) mask(s, seen, row, 0, j0);
    softmax.step(s, o);  // c, π, G rescaled, P = exp(A − c)
    if (drops<options>(x)) drop(s, dropout, bh, i0 + row, j0);
    pipe.wait_for_second(n);
    mma_AB<T>(o, s, tile_v(n), column);  // G += P·V
    pipe.release(n);
  }
  wait();

  // Warps with the same rows have the same ξ. Only one of these warps writes it.
  softmax.finish(o, lse_of_call(x, i64(bh) * x.L), i0 + row, column == 0 ? x.L : 0, unit);
  R* out = x.o.at<R>(b, h) + column;
  if constexpr (split)
    scale(o, kept, e);
  else
    __syncthreads();  // results pass through the tile of Q
  store(o, SharedTile<At::columns>{base + warp * (rows * At::columns * 2)}, 0, out, x.o.row, i0 + row, x.L,
        x.dv - column);
}

template <class S, class R, Numbers numbers, int D, int DV, Options options>
void launch(const Stream& s, const AttentionCall& x, const Powers* powers) {
  using At = TileShape<numbers, D, DV, options>;
  const int stages = fitting_stages<At>(s.gpu);
  const i64 blocks = i64(x.B) * x.H * ((x.L + At::queries - 1) / At::queries);
  launch_kernel(s, {blocks_for(blocks, 1), At::threads, At::bytes(stages)},
                attend<S, R, numbers, D, DV, options>, x, powers, stages,
                options == any                      ? float2{1, 0}
                : D >= 128 && numbers == of_16_bits ? units_of(x).natural
                                                    : unit_of_exponents(x));
}

}  // namespace forward

void launch_forward(const Stream& s, const AttentionCall& x, const Workspace&, const Powers* powers) {
  if (powers)
    return with_shape<32, 64, 128>(x, [&](auto size, auto, auto options) {
      x.tf32 ? forward::launch<__half, float, one_f16, size, size, options>(s, x, powers)
             : forward::launch<__half, float, two_f16, size, size, options>(s, x, powers);
    });
  with_16_bits(x.type, [&](auto zero) {
    using S = decltype(zero);
    with_shape<32, 64, 96, 128, 192, 256, 576>(x, [&](auto d, auto dv, auto options) {
      forward::launch<S, S, of_16_bits, d, dv, options>(s, x, nullptr);
    });
  });
}

}  // namespace tg::cuda::attention
