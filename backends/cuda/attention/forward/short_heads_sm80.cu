// Attention of short bf16 or f16 sequences on tensor cores. A block keeps one head with all its queries and
// keys in shared memory, and each warp computes 16 queries. The forward and the backward are one kernel each,
// and both start before the previous kernel has ended (programmatic launch). The kernels for long sequences
// would spend most of their time on launches and waits.
//
// The backward, with u = (O ⊛ z_O).sum − z_ξ [Stratos, FlashAttention Lemma 2.1]:
//
//   P = exp(A − ξ),  z_A = P ⊛ (z_O·Vᵀ − u),  z_Q = z_A·K,  then z_V = Pᵀ·z_O,  z_K = z_Aᵀ·Q
//
// The last two GEMMs read P and z_A of all warps from shared memory.
//
// Both kernels also compute neighboring RoPE ops. A warp rotates its rows in shared memory: queries and keys
// after they are loaded, gradients before they are stored. Gradients are rounded first, as with a separate
// RoPE kernel.
#include "backends/cuda/attention/ropes.h"
#include "backends/cuda/attention/shapes.h"
#include "backends/cuda/attention/stages/epilogue.cuh"
#include "backends/cuda/attention/stages/row_dot.cuh"
#include "backends/cuda/attention/stages/softmax.cuh"
#include "backends/cuda/attention/stages/visible_keys.cuh"
#include "backends/cuda/kernels/rotation.cuh"
#include "backends/cuda/tile/mma_sm80.cuh"
#include "backends/cuda/tile/pipeline_sm80.cuh"

namespace tg::cuda::attention {

namespace {

using namespace tile;

// The shape for L, T ≤ N and d, dv ≤ D.
template <int N, int D>
struct ShortShape {
  static constexpr int threads = 2 * N, tile = N * D * 2, square = N * N * 2;
  static constexpr int seen = 4 * tile + 2 * square, stats = seen + int(sizeof(VisibleKeys<N>)),
                       bytes = stats + N * int(sizeof(float2));
  static constexpr int forward_seen = 3 * tile, forward_bytes = forward_seen + int(sizeof(VisibleKeys<N>));
};

template <class S, int N, int D>
__device__ __forceinline__ void load_head(u32 to, const AttentionCall::TensorView& a, int b, int h, int rows,
                                          int size) {
  load_rows<N, 2 * N>(SharedTile<D>{to}, a.at<S>(b, h), a.row, 0, 0, rows, size);
}

// Applies RoPE to 16 rows of a tile that only this warp uses. A lane processes two words of a row together.
// These words are two pairs. One word is from each half, or the words are adjacent if pairs are interleaved.
template <int D>
struct RowRotator {
  static constexpr int most = D / 8;  // units (two words) per lane
  const Ropes& ropes;
  unsigned char* memory;  // the block's shared memory
  int row;                // the first of the 16 rows
  float2 c[most], s[most];

  // Loads the table, which no kernel writes, so this may precede wait_for_kernel_before().
  __device__ __forceinline__ RowRotator(const Ropes& ropes, unsigned char* memory, int row)
      : ropes(ropes), memory(memory), row(row) {
#pragma unroll
    for (int n = 0; n < most; ++n)
      if (is_there(n, ropes.rows)) {
        const float* const at = ropes.table + row_of(n) * 2 * ropes.pairs + 2 * unit();
        c[n] = *reinterpret_cast<const float2*>(at);
        s[n] = *reinterpret_cast<const float2*>(at + ropes.pairs);
        if (ropes.inverse) s[n].x = -s[n].x, s[n].y = -s[n].y;
      }
  }

  // Rotates the tile's rows in place and then stores them to `data`. The head has `rows` rows.
  template <class S>
  __device__ __forceinline__ void rotate_and_store(SharedTile<D> tile, S* data, i64 stride, int rows,
                                                   int size) const {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < most; ++n) {
      if (!is_there(n, rows)) continue;
      const int u = unit(), first = ropes.interleaved ? 4 * u : 2 * u,
                second = ropes.interleaved ? 4 * u + 2 : ropes.pairs + 2 * u;
      u32 &one = word(tile, n, first), &other = word(tile, n, second);
      float2 a = unpack(one, S()), b = unpack(other, S());
      if (ropes.interleaved)
        rotate_pair(a.x, a.y, c[n].x, s[n].x), rotate_pair(b.x, b.y, c[n].y, s[n].y);
      else
        rotate_pair(a.x, b.x, c[n].x, s[n].x), rotate_pair(a.y, b.y, c[n].y, s[n].y);
      one = pack(a.x, a.y, S()), other = pack(b.x, b.y, S());
    }
    __syncwarp();
    for (int n = lane_id(); n < 16 * tile.pieces; n += 32) {
      const int r = row + n / tile.pieces, piece = n % tile.pieces;
      if (r < rows && piece * 8 < size)
        *reinterpret_cast<uint4*>(data + r * stride + piece * 8) = ptx::ld_shared_v4(tile.address(r, piece));
    }
  }

 private:
  // 2^lanes lanes share a row, one unit each. Some lanes are idle if there are fewer units.
  __device__ __forceinline__ int row_of(int n) const {
    return row + ((n * 32 + lane_id()) >> ropes.lanes);
  }
  __device__ __forceinline__ int unit() const {
    return lane_id() & ((1 << ropes.lanes) - 1);
  }
  __device__ __forceinline__ bool is_there(int n, int rows) const {
    return unit() < ropes.pairs / 2 && row_of(n) < min(row + 16, rows);
  }
  __device__ __forceinline__ u32& word(SharedTile<D> tile, int n, int column) const {
    const u32 at = tile.address(row_of(n), column / 8) + column % 8 * 2;
    return *reinterpret_cast<u32*>(memory + (at - shared_address(memory)));
  }
};

template <class S, int N, int D>
__global__ void __launch_bounds__(2 * N)
    attend_short(const __grid_constant__ AttentionCall x, const __grid_constant__ Ropes ropes) {
  TG_DYNAMIC_SHARED(memory, 1024);
  let_next_kernel_begin();
  using At = ShortShape<N, D>;
  using T = Terms<S, 1>;
  const u32 base = shared_address(memory);
  const SharedTile<D> q{base}, k{base + At::tile}, v{base + 2 * At::tile};
  auto& seen = *reinterpret_cast<VisibleKeys<N>*>(memory + At::forward_seen);
  const int b = blockIdx.x / x.H, h = blockIdx.x % x.H, row = threadIdx.x / 32 * 16;
  seen.set(x, b, 0);
  const RowRotator<D> rotator(ropes, memory, row);
  wait_for_kernel_before();
  load_head<S, N, D>(q.base, ropes.of_q ? ropes.q : x.q, b, h, x.L, x.d);
  load_head<S, N, D>(k.base, ropes.of_k ? ropes.k : x.k, b, h, x.T, x.d);
  load_head<S, N, D>(v.base, x.v, b, h, x.T, x.dv);
  commit();
  wait();
  __syncthreads();
  if (ropes.of_q) rotator.rotate_and_store(q, x.q.at<S>(b, h), x.q.row, x.L, x.d);
  if (ropes.of_k) rotator.rotate_and_store(k, x.k.at<S>(b, h), x.k.row, x.T, x.d);
  if (ropes.of_k) __syncthreads();
  Accumulator<16, N> s;
  Accumulator<16, D> o;
  s.fill(0), o.fill(0);
  mma_ABt<T>(s, q, row, k);
  mask(s, seen, row, 0, 0);
  OnlineSoftmax<16> softmax(-INFINITY, static_cast<float>(factor_of(x)), 1);
  softmax.step(s, o);
  mma_AB<T>(o, s, v);
  softmax.finish(o, lse_of_call(x, i64{blockIdx.x} * x.L), row, x.L, unit_of_exponents(x));
  __syncthreads();  // results pass through the rows of Q
  store(o, q, row, x.o.at<S>(b, h), x.o.row, row, x.L, x.dv);
}

// Handles far rows (far_rows.cuh), in which ξ in units of log 2 is beyond the limit. Recomputes c and π from
// the scores, and replaces s by s − c and xi by log2 π. P is then 2^((s − c)·factor − log2 π).
template <int N>
__device__ __forceinline__ void normalize_far_rows(Accumulator<16, N>& s, RowVector<16>& xi, float factor,
                                                   float limit) {
  const auto is_far = [&](int r) { return fabsf(xi[r]) > limit && xi[r] != INFINITY; };
  if (!__any_sync(~0u, is_far(0) || is_far(1))) return;
#pragma unroll
  for (int r = 0; r < xi.rows; ++r) {
    float most = -INFINITY, sum = 0;
#pragma unroll
    for (int c = 0; c < s.columns; ++c) most = fmaxf(most, s(r, c));
    const float all = row_max(most), top = is_far(r) ? all : 0.f;
#pragma unroll
    for (int c = 0; c < s.columns; ++c) s(r, c) -= top, sum += exp2_fast(s(r, c) * factor);
    const float pi = row_sum(sum);
    if (is_far(r)) xi[r] = log2f(pi);
  }
}

template <class S, int N, int D>
__global__ void __launch_bounds__(2 * N)
    differentiate_short_heads(const __grid_constant__ AttentionCall x, const __grid_constant__ Ropes ropes) {
  TG_DYNAMIC_SHARED(memory, 1024);
  let_next_kernel_begin();
  using At = ShortShape<N, D>;
  using T = Terms<S, 1>;
  const u32 base = shared_address(memory);
  const SharedTile<D> q{base}, k{base + At::tile}, v{base + 2 * At::tile}, z_o{base + 3 * At::tile};
  const SharedTile<N> all_p{base + 4 * At::tile}, all_z_a{all_p.base + At::square};
  auto& seen = *reinterpret_cast<VisibleKeys<N>*>(memory + At::seen);
  float2* const stats = reinterpret_cast<float2*>(memory + At::stats);  // ξ in units of log 2, and u
  const int b = blockIdx.x / x.H, h = blockIdx.x % x.H, row = threadIdx.x / 32 * 16;
  seen.set(x, b, 0);
  wait_for_kernel_before();
  load_head<S, N, D>(q.base, x.q, b, h, x.L, x.d);
  load_head<S, N, D>(k.base, x.k, b, h, x.T, x.d);
  load_head<S, N, D>(v.base, x.v, b, h, x.T, x.dv);
  load_head<S, N, D>(z_o.base, x.z_o, b, h, x.L, x.dv);
  commit();
  {  // two threads per query
    const int i = threadIdx.x / 2;
    const i64 at = i64{blockIdx.x} * x.L + i;
    float u = i < x.L ? partial_dot<8>(x.o.at<S>(b, h) + i * x.o.row, x.z_o.at<S>(b, h) + i * x.z_o.row, x.dv,
                                       threadIdx.x % 2, 2)
                      : 0.f;
    u = sum_over(u, 2);
    if (threadIdx.x % 2 == 0) {
      float xi = INFINITY;
      if (i < x.L) {
        const float lse = static_cast<const float*>(x.lse)[at];
        if (x.z_lse) u -= static_cast<const float*>(x.z_lse)[at];
        if (lse != -INFINITY) xi = lse * static_cast<float>(log2_e);
      }
      stats[i] = {xi, u};
    }
  }
  wait();
  __syncthreads();
  Accumulator<16, N> p, z_a;
  Accumulator<16, D> z_q, z_k, z_v;
  p.fill(0), z_a.fill(0), z_q.fill(0), z_k.fill(0), z_v.fill(0);
  mma_ABt<T>(p, q, row, k);
  mma_ABt<T>(z_a, z_o, row, v);
  mask(p, seen, row, 0, 0);
  const float factor = static_cast<float>(factor_of(x));
  RowVector<16> xi;
#pragma unroll
  for (int r = 0; r < xi.rows; ++r) xi[r] = stats[row + p.row(r) + lane_row()].x;
  normalize_far_rows(p, xi, factor, static_cast<float>(most_plain_lse(x.type) * log2_e));
  for_each(p, [&](int r, int c, float& a) {
    a = exp2_fast(fmaf(a, factor, -xi[r]));
    z_a(r, c) = a * (z_a(r, c) - stats[row + p.row(r) + lane_row()].y);
  });
  put<S>(p, all_p, row, 0), put<S>(z_a, all_z_a, row, 0);
  mma_AB<T>(z_q, z_a, k);
  const RowRotator<D> rotator(ropes, memory, row);
  __syncthreads();  // all warps have stored P and z_A
  mma_AtB<T, N, D>(z_v, all_p, row, z_o, 0);
  mma_AtB<T, N, D>(z_k, all_z_a, row, q, 0);
  __syncthreads();  // results pass through the operands' rows
  const float by = static_cast<float>(x.scale);
  scale(z_q, by), scale(z_k, by);
  if (ropes.of_q)
    put<S>(z_q, q, row, 0), rotator.rotate_and_store(q, ropes.q.at<S>(b, h), ropes.q.row, x.L, x.d);
  else
    store(z_q, q, row, x.z_q.at<S>(b, h), x.z_q.row, row, x.L, x.d);
  if (ropes.of_k)
    put<S>(z_k, k, row, 0), rotator.rotate_and_store(k, ropes.k.at<S>(b, h), ropes.k.row, x.T, x.d);
  else
    store(z_k, k, row, x.z_k.at<S>(b, h), x.z_k.row, row, x.T, x.d);
  store(z_v, v, row, x.z_v.at<S>(b, h), x.z_v.row, row, x.T, x.dv);
}

// Launches kernel(zero, n, d) with bytes(shape) of shared memory. Both functions receive the call's shape as
// constants, and `zero` has the element type.
template <class Kernel, class Bytes>
void launch_short(const Stream& s, const AttentionCall& x, const Ropes& ropes, Kernel&& kernel,
                  Bytes&& bytes) {
  with_16_bits(x.type, [&](auto zero) {
    with_constant<32, 64>(std::max(x.L, x.T), [&](auto n) {
      with_constant<32, 64>(std::max(x.d, x.dv), [&](auto d) {
        launch_early(s, {blocks_for(x.B * x.H, 1), 2 * n, bytes(ShortShape<n, d>())}, kernel(zero, n, d), x,
                     ropes);
      });
    });
  });
}

}  // namespace

void launch_short_forward(const Stream& s, const AttentionCall& x, const Workspace&, const Ropes& ropes) {
  launch_short(
      s, x, ropes, [](auto zero, auto n, auto d) { return attend_short<decltype(zero), n, d>; },
      [](auto shape) -> std::size_t { return shape.forward_bytes; });
}

void launch_short_backward(const Stream& s, const AttentionCall& x, const Workspace&, const Ropes& ropes) {
  launch_short(
      s, x, ropes, [](auto zero, auto n, auto d) { return differentiate_short_heads<decltype(zero), n, d>; },
      [](auto shape) -> std::size_t { return shape.bytes; });
}

}  // namespace tg::cuda::attention
