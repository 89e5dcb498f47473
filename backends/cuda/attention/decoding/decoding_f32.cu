// Decoding of f32 by f32 multiply-adds (sm_80 and later). Keys and values are read without conversion,
// because arithmetic is cheaper than splitting them. Items, streams and writers are the same as in
// decoding_sm80.cu. A stream processes slices of 8 or 16 keys:
//
//   A = Q·Kᵀ
//   c ← max(c, A.max), P = exp(A − c), π ← exp(c_old − c)·π + P.sum
//   G ← exp(c_old − c)·G + P·V
//
// A lane multiplies four or eight columns of each key. After the reduction over lanes, each lane holds scores
// of one row, for every fourth key. P is passed through shared memory. A lane has the same columns of V as of
// K.
//
// The order of all sums depends only on the head size. A row's result is therefore bitwise identical in tiles
// of 8 and of 16 rows.
#include "backends/cuda/attention/decoding/decoding_launch.cuh"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/stages/visible_keys.cuh"

namespace tg::cuda::attention {

namespace decoding {

using namespace tile;

// A lane's part of a row [D]: `quads` groups of four columns. If rows are short, 16 lanes share a row, and a
// warp processes two rows together.
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
  // Loads a row from memory. Columns `size` … are zeros.
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
    for (float4& e : x) e = scaled(e, by);
  }
  // x += p·y
  __device__ __forceinline__ void add(float p, const RowPart& y) {
#pragma unroll
    for (int n = 0; n < quads; ++n) x[n] = multiply_add(p, y.x[n], x[n]);
  }
  // Adds the results of the two rows that a warp processes together.
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

// Transposing reduction of `lanes` sums over `lanes` lanes. Each lane receives one sum, the one with the
// lane's index. part(n) is a lane's contribution to the nth sum. Two lanes at distance `by` exchange sums:
// each lane keeps one half and sends the other half. The recursion is depth-first, so few sums are live at a
// time.
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

// Scores of a slice. A lane has the scores of one row for every fourth key.
template <class At>
struct Scores {
  using Part = RowPart<At>;
  static constexpr int fours = At::keys / 4, own = 4 / Part::rows;  // own: a lane's keys of every four
  static constexpr int count = 1, rows = fours;  // required by SoftmaxState: the lane's row, and its keys
  float x[fours] = {};

  __device__ __forceinline__ float& operator()(int four, int) { return x[four]; }
  static __device__ __forceinline__ float max(float own) {
    return over_keys(own, [](float a, float b) { return fmaxf(a, b); });
  }
  static __device__ __forceinline__ float sum(float own) {
    return over_keys(own, [](float a, float b) { return a + b; });
  }

  static __device__ __forceinline__ int key(int four) {
    return 4 * four + Part::row() * own + lane_id() % own;
  }
  static __device__ __forceinline__ int row() { return lane_id() % Part::lanes / own; }
  // is_first(): whether the lane is the first one of its row. first_lane(): the first lane of a row.
  static __device__ __forceinline__ bool is_first() { return key(0) == 0; }
  static __device__ __forceinline__ int first_lane(int row) { return row * own; }
  // Reduces x with f over a row's lanes.
  template <class F>
  static __device__ __forceinline__ float over_keys(float x, F&& f) {
    x = f(x, __shfl_xor_sync(~0u, x, 1));
    return f(x, __shfl_xor_sync(~0u, x, own == 4 ? 2 : Part::lanes));
  }

  __device__ __forceinline__ void multiply(const float* keys, const Part (&q)[At::rows]) {
    keys += Part::row() * own * At::D;
    // The loop is not unrolled, to save registers. Each iteration therefore shifts its result into the end of
    // x.
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
  // Calls f(score, key of the slice).
  template <class F>
  __device__ __forceinline__ void for_each(F&& f) {
#pragma unroll
    for (int c = 0; c < fours; ++c) f(x[c], key(c));
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
  // Multiplies each row by its factor. The lanes of a row have the factor of this row. In most cases all
  // factors are 1, and nothing is done.
  __device__ __forceinline__ void scale(float by) {
    if (!__any_sync(~0u, by != 1)) return;
#pragma unroll
    for (int r = 0; r < At::rows; ++r) of[r].scale(__shfl_sync(~0u, by, Scores<At>::first_lane(r)));
  }
  // Adds P·V of a slice, with P [keys, rows].
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
  // Calls f(row, first column, G of four columns), by one lane for each group of columns.
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

// Streaming warp for f32 (decoding_launch.cuh).
template <class S_, class At_, Options options_>
struct MultipliedInF32 {
  using S = S_;
  using At = At_;
  static constexpr Options options = options_;
  unsigned char* const ring;
  float* const p;  // [keys, rows]
  KeyRange seen;   // visible keys of the lane's row of the item
  RowPart<At> q[At::rows];
  RowSums<At> sums;
  SoftmaxState<Scores<At>> softmax;

  __device__ __forceinline__ MultipliedInF32(unsigned char* memory, int stream)
      : ring(memory + stream * At::ring),
        p(reinterpret_cast<float*>(memory + At::seen + stream * At::of_stream)) {}
  __device__ __forceinline__ void load_queries(const AttentionCall& x, const Item& item) {
#pragma unroll
    for (int r = 0; r < At::rows; ++r) q[r].load(query<float>(x, item, r), x.d);
  }
  __device__ __forceinline__ void begin(const AttentionCall& x, const Item& item) {
    const Band band(x, sequence_of_query(x, item.tile.b, 0));
    const int row = Scores<At>::row();
    seen = row < item.tile.rows ? band.of((item.tile.row0 + row) / group_of(x)) : KeyRange{0, 0};
    clear();
  }
  __device__ __forceinline__ void clear() {
    sums.fill(0), softmax = {};
  }
  __device__ __forceinline__ void take(const AttentionCall&, const Item& item, int key,
                                       const Score<float>& score, float factor, u32 keys, u32 values) {
    Scores<At> s;
    s.multiply(reinterpret_cast<const float*>(ring + keys), q);
    if constexpr (options == any)
      s.for_each([&](float& a, int) {
        float slope;
        a = score.of(a, 0, 0, false, &slope);
      });
    if (!covers(item.every, key, At::keys))
      s.for_each([&](float& a, int n) {
        if (key + n < seen.from || key + n >= seen.to) a = -INFINITY;
      });
    float by;
    softmax.step(s, factor, [&](int, float of_row) { by = of_row; });
    s.for_each([&](float& a, int n) { p[n * At::rows + s.row()] = a; });
    sums.scale(by);
    __syncwarp();
    sums.add(p, reinterpret_cast<const float*>(ring + values));
  }
  __device__ __forceinline__ void store_results(const StreamResults<At>& to) {
    const float pi = softmax.all(0);
    if (const int row = Scores<At>::row(); Scores<At>::is_first() && row < to.rows)
      to.tops[row] = {softmax.top[0], pi};
    sums.for_each(to.rows, [&](int row, int column, const float4& x) {
      *reinterpret_cast<float4*>(to.sums + row * At::row + column) = x;
    });
  }
  __device__ __forceinline__ void add_slice(const StreamResults<At>& to, float exponent) {
    float2* const own = reinterpret_cast<float2*>(p);  // c and π of the slice
    const float pi = softmax.all(0);
    const int own_row = Scores<At>::row();
    const bool adds = Scores<At>::is_first() && own_row < to.rows;
    __syncwarp();
    if (adds) own[own_row] = {softmax.top[0], pi};
    __syncwarp();
    sums.for_each(to.rows, [&](int row, int column, const float4& x) {
      float4& g = *reinterpret_cast<float4*>(to.sums + row * At::row + column);
      g = Joined(to.tops[row].x, own[row].x, exponent).of(g, x);
    });
    __syncwarp();
    if (adds) {
      const float2 before = to.tops[own_row];
      to.tops[own_row] = Joined(before.x, softmax.top[0], exponent).stats(before.y, pi);
    }
    __syncwarp();
  }
};

}  // namespace decoding

void launch_f32_decoding(const Stream& s, const AttentionCall& x, const Workspace& work) {
  decoding::launch_call<decoding::MultipliedInF32, float>(s, x, work);
}

}  // namespace tg::cuda::attention
