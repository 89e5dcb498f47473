// Shared memory of both portable backward kernels. It contains the rows that a block keeps. It also contains
// the pipeline stages for tiles of the other side. For keys, a is K and b is V; for queries, a is Q and b is
// z_O.
#pragma once

#include "backends/cuda/attention/stages/score_gradient.cuh"
#include "backends/cuda/tile/pipeline_sm80.cuh"
#include "backends/cuda/tile/shared_sm80.cuh"

namespace tg::cuda::attention {

// TileShape of the kernel defines the offsets.
template <class S, class TileShape>
struct BackwardMemory {
  using A = tile::SharedTile<TileShape::a_width>;
  using B = tile::SharedTile<TileShape::b_width>;
  unsigned char* start;
  tile::u32 base = tile::shared_address(start);

  __device__ A kept_a() const { return {base + TileShape::kept_a}; }
  __device__ B kept_b() const { return {base + TileShape::kept_b}; }
  __device__ A passing_a(int stage) const { return {base + TileShape::stages + stage * TileShape::stage}; }
  __device__ B passing_b(int stage) const { return {passing_a(stage).base + TileShape::passing_b}; }
  __device__ float2* stats(int stage) const {  // {ξ, u} of each query
    return reinterpret_cast<float2*>(start + TileShape::stats) +
           (TileShape::by_query ? 0 : stage * TileShape::queries);
  }
  __device__ VisibleKeys<TileShape::queries>& seen() const {
    return *reinterpret_cast<VisibleKeys<TileShape::queries>*>(start + TileShape::seen);
  }

  // Start copying rows row0 … of a head (of a key head for keys). Invalid rows become zeros without being
  // read.
  __device__ __forceinline__ void load_kept(const AttentionCall& x, int b, int head, KeyRange valid,
                                            int row0) const {
    load<!TileShape::by_query, TileShape::kept>(kept_a(), kept_b(), x, b, head, valid, row0);
    tile::commit();
  }
  __device__ __forceinline__ void load_passing(const AttentionCall& x, const Workspace& work, int b, int head,
                                               KeyRange valid, int row0, int stage) const {
    load<TileShape::by_query, TileShape::passing>(passing_a(stage), passing_b(stage), x, b, head, valid,
                                                  row0);
    if (!TileShape::by_query) fetch_stats<TileShape::queries>(stats(stage), x, work, b, head, row0);
    tile::commit();
  }

 private:
  template <bool keys, int count>
  __device__ __forceinline__ static void load(A to_a, B to_b, const AttentionCall& x, int b, int head,
                                              KeyRange valid, int row0) {
    const AttentionCall::TensorView &a = keys ? x.k : x.q, &c = keys ? x.v : x.z_o;
    tile::load_rows<count, TileShape::threads>(to_a, a.at<S>(b, head), a.row, row0, valid.from, valid.to,
                                               TileShape::split ? TileShape::a_width : x.d);
    tile::load_rows<count, TileShape::threads>(to_b, c.at<S>(b, head), c.row, row0, valid.from, valid.to,
                                               TileShape::split ? TileShape::b_width : x.dv);
  }
};

}  // namespace tg::cuda::attention
