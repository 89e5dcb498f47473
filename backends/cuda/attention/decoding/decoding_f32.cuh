// Decoding of f32 by multiply-adds (sm_80 and later), each an f32's: keys and values are read as they are,
// and arithmetic is cheaper than they are. Items, streams and writers are those of decoding_sm80.cuh. A
// stream takes a slice of 8 or 16 keys:
//
//   A = Q·Kᵀ                     a lane has four columns, or twice four, of a key, and then of one key
//                                of each four, and one of each eight rows, the sum over lanes
//   c ← max(c, A.max), π ← exp(c_old − c)·π + exp(A − c).sum
//   G ← exp(c_old − c)·G + P·V   P = exp(A − c) through shared memory; a lane has the same columns of V
//
// Every sum is in an order that depends on the head size alone, so a row has the same bits in a tile of 8
// rows as in one of 16.
#pragma once

#include "backends/cuda/attention/decoding/decoding_launch.cuh"
#include "backends/cuda/attention/stages/visible_keys.cuh"

namespace tg::cuda::attention::decoding {

using namespace tile;

// What a lane has of a row [D]: `quads` of four columns. 16 lanes share a row if it is short, and the warp
// has two rows at a time.
template <class At>
struct RowPart {
  static constexpr int lanes = At::D < 128 ? At::D / 4 : 32, rows = 32 / lanes, quads = At::D / 4 / lanes;
  float4 x[quads];

  static __device__ __forceinline__ int row() { return lane_id() / lanes; }
  static __device__ __forceinline__ int column(int quad) { return (lane_id() % lanes + quad * lanes) * 4; }
  __device__ __forceinline__ void fill(float to) {
#pragma unroll
    for (float4& e : x) e = {to, to, to, to};
  }
  // Of a row in memory: columns from `size` on are zeros.
  __device__ __forceinline__ void load(const float* row, int size) {
#pragma unroll
    for (int n = 0; n < quads; ++n)
      x[n] = row && column(n) < size ? *reinterpret_cast<const float4*>(row + column(n)) : float4{0, 0, 0, 0};
  }
  __device__ __forceinline__ void load(const float* row) {
#pragma unroll
    for (int n = 0; n < quads; ++n) x[n] = *reinterpret_cast<const float4*>(row + column(n));
  }
  __device__ __forceinline__ void scale(float by) {
#pragma unroll
    for (float4& e : x) e = {e.x * by, e.y * by, e.z * by, e.w * by};
  }
  // += p·y
  __device__ __forceinline__ void add(float p, const RowPart& y) {
#pragma unroll
    for (int n = 0; n < quads; ++n) {
      const float4 e = y.x[n];
      x[n] = {fmaf(p, e.x, x[n].x), fmaf(p, e.y, x[n].y), fmaf(p, e.z, x[n].z), fmaf(p, e.w, x[n].w)};
    }
  }
  // What both rows that the warp has at a time add to becomes one.
  __device__ __forceinline__ void join() {
    if constexpr (rows == 2) {
      const auto both = [](float e) { return e + __shfl_xor_sync(~0u, e, lanes); };
#pragma unroll
      for (float4& e : x) e = {both(e.x), both(e.y), both(e.z), both(e.w)};
    }
  }
};
template <class At>
__device__ __forceinline__ float dot(const RowPart<At>& a, const RowPart<At>& b) {
  float sum = 0;
#pragma unroll
  for (int n = 0; n < a.quads; ++n) {
    const float4 x = a.x[n], y = b.x[n];
    sum = fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum))));
  }
  return sum;
}

// Of as many sums over lanes as there are lanes, the lane's own, its n-th: part(n) is what a lane adds to the
// nth. Lanes that are `by` apart give each other the half of their sums that is the other's. Depth first:
// few are held at a time.
template <int lanes, int by = 1, class F>
__device__ __forceinline__ float own_sum(const F& part, int n = 0) {
  if constexpr (by == lanes) {
    return part(n);
  } else {
    const float low = own_sum<lanes, 2 * by>(part, n), high = own_sum<lanes, 2 * by>(part, n + by);
    const bool is_high = lane_id() & by;
    return (is_high ? high : low) + __shfl_xor_sync(~0u, is_high ? low : high, by);
  }
}

// Scores of a slice: a lane has those of one row with a key of each four.
template <class At>
struct Scores {
  using Part = RowPart<At>;
  static constexpr int fours = At::keys / 4, own = 4 / Part::rows;  // keys of four whose products a lane adds
  float x[fours] = {};

  static __device__ __forceinline__ int key(int four) {
    return 4 * four + Part::row() * own + lane_id() % own;
  }
  static __device__ __forceinline__ int row() { return lane_id() % Part::lanes / own; }
  // Whether the lane is the first of its row, and that lane.
  static __device__ __forceinline__ bool is_first() { return key(0) == 0; }
  static __device__ __forceinline__ int first_lane(int row) { return row * own; }
  // f(x, y) over a row's lanes.
  template <class F>
  static __device__ __forceinline__ float over_keys(float x, F&& f) {
    x = f(x, __shfl_xor_sync(~0u, x, 1));
    return f(x, __shfl_xor_sync(~0u, x, own == 4 ? 2 : Part::lanes));
  }

  __device__ __forceinline__ void multiply(const float* keys, const Part (&q)[At::rows]) {
    keys += Part::row() * own * At::D;
    // Not unrolled, which would take more registers: each result comes in at the end.
#pragma unroll 1
    for (int c = 0; c < fours; ++c, keys += 4 * At::D) {
      Part k[own];
#pragma unroll
      for (int n = 0; n < own; ++n) k[n].load(keys + n * At::D);
#pragma unroll
      for (int n = 1; n < fours; ++n) x[n - 1] = x[n];
      x[fours - 1] = own_sum<Part::lanes>([&](int n) { return dot(q[n / own], k[n % own]); });
    }
  }
  // f(score, key of the slice)
  template <class F>
  __device__ __forceinline__ void for_each(F&& f) {
#pragma unroll
    for (int c = 0; c < fours; ++c) f(x[c], key(c));
  }
};

// Of the lane's row c, and π, which is that of the lane's own keys until the end.
template <class At>
struct RowSoftmax {
  float top = -INFINITY, sum = 0;

  // c ← max(c, A.max), π ← exp(c_old − c)·π + exp(A − c).sum; A becomes exp(A − c). Returns what
  // G is to be multiplied by.
  __device__ __forceinline__ float step(Scores<At>& s, float exponent) {
    float most = -INFINITY;
    s.for_each([&](float a, int) { most = fmaxf(most, a); });
    most = s.over_keys(most, [](float a, float b) { return fmaxf(a, b); });
    const float now = fmaxf(top, most), shown = now == -INFINITY ? 0.f : now,
                by = exp_of_difference(top, shown, exponent);
    top = now, sum *= by;
    s.for_each([&](float& a, int) {
      a = exp_of_difference(a, shown, exponent);
      sum += a;
    });
    return by;
  }
  // π of all keys.
  __device__ __forceinline__ float all() const {
    return Scores<At>::over_keys(sum, [](float a, float b) { return a + b; });
  }
};

// G of a tile's rows.
template <class At>
struct RowSums {
  using Part = RowPart<At>;
  Part of[At::rows];

  __device__ __forceinline__ RowSums() { fill(0); }
  __device__ __forceinline__ void fill(float to) {
#pragma unroll
    for (Part& e : of) e.fill(to);
  }
  // By the factor of each row, which its lanes have. 1 changes nothing, and most are.
  __device__ __forceinline__ void scale(float by) {
    if (!__any_sync(~0u, by != 1)) return;
#pragma unroll
    for (int r = 0; r < At::rows; ++r) of[r].scale(__shfl_sync(~0u, by, Scores<At>::first_lane(r)));
  }
  // += P·V of a slice, P [keys, rows].
  __device__ __forceinline__ void add(const float* p, const float* values) {
    p += Part::row() * At::rows, values += Part::row() * At::D;
#pragma unroll 2
    for (int n = 0; n < At::keys; n += Part::rows) {
      Part v;
      v.load(values + n * At::D);
#pragma unroll
      for (int r = 0; r < At::rows; r += 4) {
        const float4 w = *reinterpret_cast<const float4*>(p + n * At::rows + r);
        of[r].add(w.x, v), of[r + 1].add(w.y, v), of[r + 2].add(w.z, v), of[r + 3].add(w.w, v);
      }
    }
  }
  // f(row, first column, G of four columns), by one lane for each.
  template <class F>
  __device__ __forceinline__ void for_each(int rows, F&& f) {
#pragma unroll
    for (int r = 0; r < At::rows; ++r) {
      of[r].join();
#pragma unroll
      for (int n = 0; n < Part::quads; ++n)
        if (r < rows && Part::row() == 0) f(r, Part::column(n), of[r].x[n]);
    }
  }
};

// c, π and G of a stream.
template <class At>
__device__ __forceinline__ void leave(const Left<At>& to, const RowSoftmax<At>& softmax, RowSums<At>& sums) {
  const float pi = softmax.all();
  if (const int row = Scores<At>::row(); Scores<At>::is_first() && row < to.rows)
    to.tops[row] = {softmax.top, pi};
  sums.for_each(to.rows, [&](int row, int column, const float4& x) {
    *reinterpret_cast<float4*>(to.sums + row * At::row + column) = x;
  });
}
// Of a short tile, those of a slice more. `own` has room for c and π of it.
template <class At>
__device__ __forceinline__ void add_slice(const Left<At>& to, const RowSoftmax<At>& softmax,
                                          RowSums<At>& sums, float2* own, float exponent) {
  const float pi = softmax.all();
  const int own_row = Scores<At>::row();
  const bool adds = Scores<At>::is_first() && own_row < to.rows;
  __syncwarp();
  if (adds) own[own_row] = {softmax.top, pi};
  __syncwarp();
  sums.for_each(to.rows, [&](int row, int column, const float4& x) {
    float4& g = *reinterpret_cast<float4*>(to.sums + row * At::row + column);
    const Joined all(to.tops[row].x, own[row].x, exponent);
    g = {all.of(g.x, x.x), all.of(g.y, x.y), all.of(g.z, x.z), all.of(g.w, x.w)};
  });
  __syncwarp();
  if (adds) {
    const float2 before = to.tops[own_row];
    const Joined all(before.x, softmax.top, exponent);
    to.tops[own_row] = {all.top, all.of(before.y, pi)};
  }
  __syncwarp();
}

// Of f32 (decoding_launch.cuh).
template <class S_, class At_, Options options>
struct MultipliedInF32 {
  using S = S_;
  using At = At_;

  // As that of MultipliedByTensorCores. One loop for both, with what is done to a slice as its argument, took
  // 4 to 6 % longer.
  template <class Cache>
  static __device__ void stream(const AttentionCall& x, const Plan<Cache>& plan, const Items<Cache>& items,
                                unsigned char* memory, int stream, bool alone) {
    using Part = RowPart<At>;
    unsigned char* const ring = memory + stream * At::ring;
    float* const p = reinterpret_cast<float*>(memory + At::seen + stream * At::of_stream);  // [keys, rows]
    const auto place = [&] { return Left<At>(memory, stream, At::rows_of_tile(x)); };
    int n = items.first(stream);
    const Score<float> score(plan.factor, plan.cap);
    const float factor = options == any ? 1 : score.factor;
    Loader<float, At, Cache> loader(x, plan.cache, items, stream, shared_address(ring));
    wait_for_kernel_before();
#pragma unroll
    for (int n = 0; n < At::stages; ++n) loader.ask();
    Part q[At::rows];
    const auto load_queries = [&](const Item& item) {
#pragma unroll
      for (int r = 0; r < At::rows; ++r) q[r].load(query<float>(x, item, r), x.d);
    };
    const Item* item = items.kept(n, stream);
    load_queries(*item);
    int slot = 0;
    bool first = true;
#pragma unroll 1
    while (n < items.count) {
      const Band band(x, sequence_of_query(x, item->tile.b, 0));
      const int row = Scores<At>::row();
      const KeyRange seen =
          row < item->tile.rows ? band.of((item->tile.row0 + row) / group_of(x)) : KeyRange{0, 0};
      if (item->is_short) begin_short(place());
      RowSums<At> sums;
      RowSoftmax<At> softmax;
#pragma unroll 1
      for (int key = first_key<At>(*item, stream); key < item->keys.to; key += step_of<At>(*item)) {
        ptx::cp_async_wait<At::stages - 1>();
        __syncwarp();
        const int at = slot * At::stage;
        slot = slot + 1 < At::stages ? slot + 1 : 0;
        Scores<At> s;
        s.multiply(reinterpret_cast<const float*>(ring + at), q);
        if constexpr (options == any)
          s.for_each([&](float& a, int) {
            float slope;
            a = score.of(a, 0, 0, false, &slope);
          });
        if (!covers(item->every, key, At::keys))
          s.for_each([&](float& a, int n) {
            if (key + n < seen.from || key + n >= seen.to) a = -INFINITY;
          });
        const float by = softmax.step(s, factor);
        s.for_each([&](float& a, int n) { p[n * At::rows + row] = a; });
        sums.scale(by);
        __syncwarp();
        sums.add(p, reinterpret_cast<const float*>(ring + loader.values(at).base));
        __syncwarp();  // no lane needs the slice
        loader.ask();
        if (item->is_short) {
          add_slice(place(), softmax, sums, reinterpret_cast<float2*>(p), factor);
          sums.fill(0);
          softmax = {};
        }
      }
      const bool is_short = item->is_short;
      if (is_short) put_short<float>(x, *item, place());
      // Queries of the next item arrive while this one's sums are left.
      n = items.after(n, At::streams);
      if (n < items.count) {
        item = items.kept(n, stream);
        load_queries(*item);
      }
      if (is_short) continue;
      if (!first) ptx::bar_sync(may_leave + stream, 32 * (At::writers + 1));
      first = false;
      leave(place(), softmax, sums);
      if (!alone) ptx::bar_arrive(left, At::threads);
    }
  }
};

}  // namespace tg::cuda::attention::decoding
