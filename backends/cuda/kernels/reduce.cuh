// Reductions over any axes, in one of two ways. If the innermost axis in memory is reduced, threads iterate
// along rows. Otherwise they iterate down columns, and adjacent threads have adjacent columns. Long
// reductions are split between several blocks, and a second launch combines their results. The order of
// operations depends only on the shapes and the GPU.
//
// A reduction R has a State, init(), add(state, value, index), merge(a, b) and finish(state) → result.
#pragma once

#include <algorithm>
#include <cstring>

#include "backends/cuda/kernels/any.cuh"
#include "core/graph/op_attrs.h"

namespace tg::cuda {

// The layout of a reduction's elements. Strides are in elements or in packs of them.
struct Walk {
  Strides kept, kept_out, reduced;
  i64 outs, count, splits;  // results (for columns: packs), elements per result, splits per result
  i64 out_step;             // stride between the results of a pack
  int group;                // rows: threads per result
};

// Reverses the order of values, so that minima become maxima.
template <class C>
__device__ __forceinline__ C flipped(C v) {
  if constexpr (std::is_same_v<C, i64>)
    return ~v;
  else
    return -v;
}

// The destination of results. If `partial` is not null, it receives [outs, splits] (rows) or [splits, outs]
// (columns).
template <class R>
struct Results {
  typename R::State* partial;
  void* data;
  DType type;
  double divisor = 1;
  bool flip = false;  // results are reversed, because the order of elements was

  __device__ void put(i64 at, const typename R::State& s) const {
    auto v = R::finish(s);
    if constexpr (!std::is_same_v<decltype(v), i64>)
      if (divisor != 1) v = static_cast<decltype(v)>(v / divisor);
    store_as(data, type, at, flip ? flipped(v) : v);
  }
};

template <class S>
struct Elements {
  using storage = S;
  using value = compute_t<S>;
  const S* data;
  template <int V>
  __device__ __forceinline__ void load(i64 at, value (&v)[V]) const {
    const auto p = *reinterpret_cast<const Pack<S, V>*>(data + at);
#pragma unroll
    for (int e = 0; e < V; ++e) v[e] = widen(p.at[e]);
  }
};
struct Integers {
  using storage = i64;
  using value = i64;
  const void* data;
  DType type;
  template <int V>
  __device__ __forceinline__ void load(i64 at, value (&v)[V]) const {
    v[0] = load_as<i64>(data, type, at);
  }
};
// The states of a first launch, as elements of the second launch.
template <class T>
struct Partials {
  using value = T;
  const T* data;
  template <int V>
  __device__ __forceinline__ void load(i64 at, value (&v)[V]) const {
    v[0] = data[at];
  }
};
template <class R>
struct Merge : R {
  using State = typename R::State;
  static __device__ __forceinline__ void add(State& s, const State& v, i64) { s = R::merge(s, v); }
};

// Not inlined, because divisions need many instructions and this function has many callers.
static __device__ __noinline__ i64 place_of_many(const Strides& s, i64 i) {
  return i < (1ll << 31) ? s.offset(static_cast<unsigned>(i)) : s.offset(i);
}
__device__ __forceinline__ i64 place(const Strides& s, i64 i) {
  if (s.rank <= 1) return s.rank == 1 ? i * s.stride[0] : 0;
  return place_of_many(s, i);
}

template <class T>
__device__ __forceinline__ T shuffle_down(T v, int by, int width) {
  static_assert(sizeof(T) % 4 == 0);
  int word[sizeof(T) / 4];
  memcpy(word, &v, sizeof(T));
#pragma unroll
  for (int& w : word) w = __shfl_down_sync(0xffffffffu, w, by, width);
  memcpy(&v, word, sizeof(T));
  return v;
}

constexpr int reduce_block = 256;
constexpr int column_threads = 1024;  // maximum per block
constexpr int column_width = 128;     // columns of a block that reads packs

// Calls add(unit, offset) for the units first, first + step, … below end.
template <class F>
__device__ __forceinline__ void stride_over(const Strides& s, i64 first, i64 end, i64 step, F add) {
  if (s.rank <= 1) {
    const i64 stride = s.rank == 1 ? s.stride[0] : 0;
#pragma unroll 4
    for (i64 u = first; u < end; u += step) add(u, u * stride);
  } else {
#pragma unroll 2
    for (i64 u = first; u < end; u += step) add(u, place(s, u));
  }
}

template <class R, int V, class Source>
__device__ __forceinline__ void add_pack(typename R::State (&a)[V], const Source& x, i64 at, i64 index) {
  typename Source::value v[V];
  x.template load<V>(at, v);
#pragma unroll
  for (int e = 0; e < V; ++e) R::add(a[e], v[e], index + e);
}

// Each split of each row has one group of threads. `reduced` counts packs of V. If a row's length is not a
// multiple of V, the row is contiguous, and the last split processes the remainder.
template <class R, class Source, int V>
__global__ void __launch_bounds__(reduce_block)
    reduce_rows(Source x, const __grid_constant__ Walk w, Results<R> out) {
  begin_early();
  using State = typename R::State;
  __shared__ __align__(16) unsigned char of_warps[reduce_block / 32 * sizeof(State)];
  State* of_warp = reinterpret_cast<State*>(of_warps);  // without constructors
  const int group = w.group, per_block = reduce_block / group, lane = threadIdx.x % group;
  const i64 jobs = w.outs * w.splits, packs = w.count / V;
  for (i64 first = i64(blockIdx.x) * per_block; first < jobs; first += i64(gridDim.x) * per_block) {
    const i64 job = first + threadIdx.x / group;
    State a[V];
#pragma unroll
    for (int e = 0; e < V; ++e) a[e] = R::init();
    const i64 o = w.splits == 1 ? job : job / w.splits, s = job - o * w.splits;
    if (job < jobs) {
      const i64 base = place(w.kept, o);
      const i64 begin = w.splits == 1 ? 0 : packs * s / w.splits;
      const i64 end = w.splits == 1 ? packs : packs * (s + 1) / w.splits;
      stride_over(w.reduced, begin + lane, end, group,
                  [&](i64 u, i64 at) { add_pack<R, V>(a, x, base + at, u * V); });
      if (V > 1 && s == w.splits - 1)
        for (i64 i = packs * V + lane; i < w.count; i += group) {
          typename Source::value v[1];
          x.template load<1>(base + i, v);
          R::add(a[0], v[0], i);
        }
    }
#pragma unroll
    for (int half = V / 2; half > 0; half /= 2)
#pragma unroll
      for (int e = 0; e < half; ++e) a[e] = R::merge(a[e], a[e + half]);
    State total = a[0];
    const int width = group < 32 ? group : 32;
    for (int by = width / 2; by > 0; by /= 2) total = R::merge(total, shuffle_down(total, by, width));
    if (group > 32) {
      if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = total;
      __syncthreads();
      if (threadIdx.x == 0)
        for (int k = 1; k < reduce_block / 32; ++k) total = R::merge(total, of_warp[k]);
      __syncthreads();
    }
    if (lane != 0 || job >= jobs) continue;
    if (out.partial)
      out.partial[job] = total;
    else
      out.put(place(w.kept_out, o), total);
  }
}

// A block has blockDim.x packs of columns. The blockDim.y threads of each column share its rows.
template <class R, class Source, int V>
__global__ void __launch_bounds__(column_threads)
    reduce_columns(Source x, const __grid_constant__ Walk w, Results<R> out) {
  begin_early();
  using State = typename R::State;
  TG_DYNAMIC_SHARED(shared, 16);
  State* of_thread = reinterpret_cast<State*>(shared);  // [blockDim.y, blockDim.x · V]
  const int tx = blockDim.x, ty = blockDim.y, width = tx * V;
  const i64 blocks = (w.outs + tx - 1) / tx * w.splits;
  for (i64 b = blockIdx.x; b < blocks; b += gridDim.x) {
    const i64 first = b / w.splits * tx, o = first + threadIdx.x, s = b % w.splits;
    State a[V];
#pragma unroll
    for (int e = 0; e < V; ++e) a[e] = R::init();
    if (o < w.outs) {
      const i64 base = place(w.kept, o);
      stride_over(w.reduced, w.count * s / w.splits + threadIdx.y, w.count * (s + 1) / w.splits, ty,
                  [&](i64 r, i64 at) {
                    typename Source::value v[V];
                    x.template load<V>(base + at, v);
#pragma unroll
                    for (int e = 0; e < V; ++e) R::add(a[e], v[e], r);
                  });
    }
#pragma unroll
    for (int e = 0; e < V; ++e) of_thread[threadIdx.y * width + threadIdx.x * V + e] = a[e];
    __syncthreads();
    // For each column, one thread merges the results of all threads of the column, in order.
    for (int c = threadIdx.y * tx + threadIdx.x; c < width && first * V + c < w.outs * V; c += tx * ty) {
      State total = of_thread[c];
      for (int y = 1; y < ty; ++y) total = R::merge(total, of_thread[y * width + c]);
      if (out.partial)
        out.partial[(s * w.outs + first) * V + c] = total;
      else
        out.put(place(w.kept_out, first + c / V) + c % V * w.out_step, total);
    }
    __syncthreads();
  }
}

// ---- on the host ----

struct ReduceAxis {
  i64 size, in, out;
};

// How a reduction iterates and is split. It depends only on shapes, strides and the GPU.
struct ReducePlan {
  ReduceAxis kept[max_rank], reduced[max_rank];  // outermost first, merged
  int kept_rank = 0, reduced_rank = 0;
  i64 outs = 1, count = 1, splits = 1;
  bool columns;

  // If `ordered`, elements are numbered row-major. Otherwise axes are sorted by their order in memory.
  ReducePlan(const Layout& x, const Layout& y, const Axes& axes, bool keepdim, bool ordered, const Gpu& gpu);
};

// Returns the plan of a reduction's call.
inline ReducePlan reduce_plan(const Call& c, bool ordered = false) {
  const auto& a = c.attrs->as<ReduceAttrs>();
  return ReducePlan(c.in[0].layout, c.out[0].layout, a.axes, a.keepdim, ordered, c.gpu);
}

Walk walk_of(const ReducePlan& p, int pack, bool columns);
// Whether packs of this many elements can be read. Every stride must then be a whole number of packs.
bool takes_packs(const ReducePlan& p, const void* data, int pack, int element_size);

// The block shape for columns: packs of columns × threads that share the rows. A block has 256 threads, or
// more if 256 do not fill the GPU. Each thread has at least eight rows.
inline dim3 column_block(int pack, i64 outs, i64 count, i64 splits, std::size_t state, const Gpu& gpu) {
  unsigned tx = pack > 1 ? static_cast<unsigned>(std::max(column_width / pack, 8)) : 32;
  unsigned most = reduce_block / tx, ty = 1;
  if (outs * splits * most < 1024ll * gpu.processors) most = column_threads / tx;
  while (ty < most && i64(ty) * 8 <= count && 2 * ty * tx * pack * state <= std::size_t{48} << 10) ty *= 2;
  while (tx * ty < reduce_block && tx < outs) tx *= 2;
  return dim3(tx, ty);
}

inline int row_group(i64 count) {
  int group = 1;
  while (group < 32 && group * 4 < count) group *= 2;
  return count >= 2048 ? reduce_block : group;
}

template <class R, int V, class Source>
void launch_rows(const Stream& s, const Source& x, Walk w, const Results<R>& out) {
  w.group = row_group(w.count / w.splits);
  launch_early(s, {blocks_for(w.outs * w.splits, reduce_block / w.group), reduce_block},
               reduce_rows<R, Source, V>, x, w, out);
}
template <class R, int V, class Source>
void launch_columns(const Stream& s, const Source& x, const Walk& w, const Results<R>& out) {
  using State = typename R::State;
  const dim3 block = column_block(V, w.outs, w.count / w.splits, w.splits, sizeof(State), s.gpu);
  launch_early(s,
               {blocks_for((w.outs + block.x - 1) / block.x * w.splits, 1), block,
                std::size_t{block.x} * block.y * V * sizeof(State)},
               reduce_columns<R, Source, V>, x, w, out);
}

// The second launch. It merges `parts` states for each of n results. Part p of result i is
// partial[p·part + i·result].
template <class R>
void merge_partials(const Stream& s, const typename R::State* partial, i64 n, i64 parts, i64 part, i64 result,
                    const Strides& to, const Results<R>& out) {
  using State = typename R::State;
  Walk w{};
  w.kept.rank = w.reduced.rank = 1;
  w.kept.size[0] = n, w.kept.stride[0] = result;
  w.reduced.size[0] = parts, w.reduced.stride[0] = part;
  w.kept_out = to;
  w.outs = n, w.count = parts, w.splits = 1;
  const Results<Merge<R>> put{nullptr, out.data, out.type, out.divisor, out.flip};
  if (part == 1)
    launch_rows<Merge<R>, 1>(s, Partials<State>{partial}, w, put);
  else
    launch_columns<Merge<R>, 1>(s, Partials<State>{partial}, w, put);
}

template <class R>
std::size_t partial_bytes(const ReducePlan& p) {
  return p.splits == 1 ? 0 : static_cast<std::size_t>(p.outs * p.splits) * sizeof(typename R::State);
}

template <class R, int pack, class Source>
void reduce(const Stream& s, const ReducePlan& p, const Source& x, Results<R> out) {
  const bool packs =
      pack > 1 && takes_packs(p, x.data, pack, static_cast<int>(sizeof(typename Source::storage)));
  const Walk w = walk_of(p, packs ? pack : 1, p.columns);
  const Walk one = walk_of(p, 1, p.columns);
  if (p.splits > 1) out.partial = reinterpret_cast<typename R::State*>(s.workspace);
  if (p.columns)
    packs ? launch_columns<R, pack>(s, x, w, out) : launch_columns<R, 1>(s, x, w, out);
  else
    packs ? launch_rows<R, pack>(s, x, w, out) : launch_rows<R, 1>(s, x, w, out);
  if (p.splits == 1) return;
  const auto* partial = out.partial;
  out.partial = nullptr;
  merge_partials<R>(s, partial, p.outs, p.splits, p.columns ? p.outs : 1, p.columns ? 1 : p.splits,
                    one.kept_out, out);
}

}  // namespace tg::cuda
