// The forward of attention on tensor cores for heads beyond 128 (FlashAttention-2, 004 §D), like
// forward_sm80.cu, with fewer queries a warp; the widest values are split between two warps that
// make the same scores.
#include "backends/cuda/attention/softmax.cuh"
#include "backends/cuda/attention/wide_sizes.cuh"
#include "backends/cuda/kernels/launch.cuh"

namespace tg::cuda {

using namespace tiles;

namespace {

// d ≤ D, dv ≤ DV; 16·groups queries and `columns` of O a warp.
template <int D, int DV>
struct Shared {
  static constexpr int groups = DV <= 128 ? 2 : 1, splits = DV > 256 ? 2 : 1, columns = DV / splits,
                       queries = 64 * groups, threads = 128 * splits, keys = 32;
  static constexpr int q = 0, ranges = q + queries * D * 2,
                       stages = (ranges + int(sizeof(attn::Keys<queries>)) + 1023) / 1024 * 1024,
                       v = keys * D * 2, stage = v + keys * DV * 2;
  static constexpr std::size_t bytes(int n) { return stages + n * stage; }
};

template <class S, int D, int DV>
__global__ void __launch_bounds__(Shared<D, DV>::threads)
    wide_forward(const __grid_constant__ Attention x, int stages) {
  TG_DYNAMIC_SHARED(memory, 1024);
  using At = Shared<D, DV>;
  constexpr int keys = At::keys, queries = At::queries, threads = At::threads, groups = At::groups;
  auto& ranges = *reinterpret_cast<attn::Keys<queries>*>(memory + At::ranges);
  const u32 base = shared_address(memory);
  const SharedTile<D> tile_q{base + At::q};
  const int tiles = (x.L + queries - 1) / queries, i0 = (tiles - 1 - blockIdx.x % tiles) * queries,
            bh = blockIdx.x / tiles, h = bh % x.H, b = bh / x.H, key_head = h / (x.H / x.Hk);
  const int warp = threadIdx.x / 32, row = warp / At::splits * 16 * groups,
            column = warp % At::splits * At::columns;

  load_rows<queries, threads>(tile_q, x.q.at<S>(b, h), x.q.row, i0, 0, x.L, x.d);
  commit();
  ranges.set(x, b, i0);
  __syncthreads();
  KeyRange some, every;
  ranges.unite(min(queries, x.L - i0), some, every);

  const S* k = x.k.at<S>(b, key_head);
  const S* v = x.v.at<S>(b, key_head);
  const auto stage = [&](int n) { return base + At::stages + (n & (stages - 1)) * At::stage; };
  const auto tile_k = [&](int n) { return SharedTile<D>{stage(n)}; };
  const auto tile_v = [&](int n) { return SharedTile<DV>{stage(n) + At::v}; };
  const auto fetch = [&](int n) {
    load_rows<keys, threads>(tile_k(n), k, x.k.row, n * keys, some.from, some.to, x.d);
    load_rows<keys, threads>(tile_v(n), v, x.v.row, n * keys, some.from, some.to, x.dv);
    commit();
  };

  Sums<At::columns / 8> o[groups];
#pragma unroll
  for (auto& part : o) part.clear();
  attn::OnlineSoftmax<groups> softmax(x.sink ? widen(static_cast<const S*>(x.sink)[h]) : -INFINITY);
  const attn::Extras<S> extras(x, b, h);
  const Dropout<float> dropout(x);
  const int n_from = some.from / keys, n_to = (some.to + keys - 1) / keys;
  if (n_from < n_to) fetch(n_from);
  for (int n = n_from; n < n_to; ++n) {
    wait<0>();
    __syncthreads();
    if (stages == 2 && n + 1 < n_to) fetch(n + 1);

    Sums<keys / 8> s[groups];
#pragma unroll
    for (auto& part : s) part.clear();
    multiply_rows<S>(s, tile_q, row, tile_k(n), 0);
    const int j0 = n * keys;
    attn::apply(extras, s, x, i0 + row, j0);
    if (j0 < every.from || j0 + keys > every.to) attn::mask(s, ranges, row, j0);
    softmax.step(s, o, 1);
    if (x.dropout > 0) attn::drop(s, dropout, bh, i0 + row, j0);
#pragma unroll
    for (int c = 0; c < keys / 16; ++c) {
      Left p[groups];
#pragma unroll
      for (int m = 0; m < groups; ++m) p[m] = left<S>(s[m], c);
#pragma unroll
      for (int e = 0; e < At::columns / 16; ++e) {
        const Right values = right(tile_v(n), c, column / 16 + e);
#pragma unroll
        for (int m = 0; m < groups; ++m) mma<S>(o[m], e, p[m], values);
      }
    }
    if (stages == 1 && n + 1 < n_to) {
      __syncthreads();
      fetch(n + 1);
    }
  }
  wait<0>();
  __syncthreads();

  // Warps with the same rows have the same ξ: one of them writes it.
  softmax.finish(o, static_cast<float*>(x.lse) + i64(bh) * x.L, i0 + row, column == 0 ? x.L : 0);
  const SharedTile<At::columns> own{base + warp * (16 * At::columns * 2)};
#pragma unroll
  for (int m = 0; m < groups; ++m)
    store_rows<S>(o[m], own, 0, x.o.at<S>(b, h) + column, x.o.row, i0 + row + m * 16, x.L, x.dv - column);
}

int stages_for(const Attention& x, const Gpu& gpu) {
  return attn::with_wide_sizes(x, [&](auto d, auto dv) {
    using At = Shared<d, dv>;
    const auto most = static_cast<std::size_t>(gpu.shared_per_block);
    return At::bytes(2) <= most ? 2 : At::bytes(1) <= most ? 1 : 0;
  });
}

}  // namespace

bool fits_wide_forward(const Attention& x, const Gpu& gpu) {
  return stages_for(x, gpu) > 0;
}

void launch_wide_forward(const Stream& s, const Attention& x) {
  attn::with_wide_sizes(x, [&](auto d, auto dv) {
    using At = Shared<d, dv>;
    const int stages = stages_for(x, s.gpu);
    const i64 blocks = i64(x.B) * x.H * ((x.L + At::queries - 1) / At::queries);
    const LaunchShape shape{blocks_for(blocks, 1), At::threads, At::bytes(stages)};
    x.type == DType::bf16 ? launch_kernel(s, shape, wide_forward<__nv_bfloat16, d, dv>, x, stages)
                          : launch_kernel(s, shape, wide_forward<__half, d, dv>, x, stages);
  });
}

}  // namespace tg::cuda
