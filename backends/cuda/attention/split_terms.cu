// f32 operands of attention as f16 terms: how long rows are, the powers of two, the numbers. In three
// launches, or in one where there are enough short heads to keep a block busy with each.
#include <algorithm>
#include <cfloat>

#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/powers.cuh"
#include "backends/cuda/kernels/elements.cuh"

namespace tg::cuda::attention {

namespace split_terms {

constexpr int block_threads = 256, head_threads = 512, empty = -10000;

// Rows [from, to) that any key or query of the call may meet: others may hold anything.
__device__ KeyRange rows_of(const AttentionCall& x, const SplitOperands::Operand& a, int b) {
  if (const int* cu = a.keys ? x.cu_k : x.cu_q) return {max(cu[0], 0), min(cu[x.segments], a.rows)};
  return {0, a.keys && x.lengths ? kv_length(x, b) : a.rows};
}

// k with √square < 2ᵏ; `empty` of 0.
__device__ int exponent_above(double square) {
  if (square == 0) return empty;
  int e;
  frexp(square, &e);
  return (e + 1) >> 1;
}

// |x|, but 0 of ∞ and NaN, which no power of two helps.
__device__ __forceinline__ float size_of_finite(float x) {
  return fabsf(x) <= FLT_MAX ? fabsf(x) : 0;
}

// A block's chunk of an operand.
struct Chunk {
  int b, h, chunk;
  __device__ Chunk(const SplitOperands::Operand& a, int n)
      : b(n / a.chunks() / a.heads), h(n / a.chunks() % a.heads), chunk(n % a.chunks()) {}
};

// Four numbers of a row of an operand, zeros beyond it.
__device__ __forceinline__ float4 piece(const AttentionCall& x, const SplitOperands::Operand& a,
                                        const Chunk& at, int row, int column) {
  if (row >= a.rows || column >= a.size) return {0, 0, 0, 0};
  return *reinterpret_cast<const float4*>(a.from.at<float>(at.b, at.h) + row * a.from.row + column);
}

__device__ __forceinline__ float largest(float top, const float4& p) {
  return fmaxf(fmaxf(fmaxf(top, size_of_finite(p.x)), fmaxf(size_of_finite(p.y), size_of_finite(p.z))),
               size_of_finite(p.w));
}

// k with 2ᵏ above the length of rows, from `top`, the largest number in a thread's four columns of its rows.
// Known to the first warp.
template <int W, int Threads>
__device__ __forceinline__ int exponent_of_rows(float top) {
  __shared__ float tops[Threads];
  constexpr int lanes = W / 4;
  tops[threadIdx.x] = top;
  __syncthreads();
  double square = 0;
  if (threadIdx.x < lanes) {
    for (int n = threadIdx.x; n < Threads; n += lanes) top = fmaxf(top, tops[n]);
    square = 4. * top * top;
  }
  if (threadIdx.x < 32)
#pragma unroll
    for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(~0u, square, step);
  return exponent_above(square);
}

// v·unit in one or two terms.
template <int W>
__device__ __forceinline__ void put_terms(__half* to, const float4& v, float unit, int terms) {
  const float4 y = {v.x * unit, v.y * unit, v.z * unit, v.w * unit};
  const uint2 high = {ptx::cvt_f16x2(y.x, y.y), ptx::cvt_f16x2(y.z, y.w)};
  *reinterpret_cast<uint2*>(to) = high;
  if (terms == 1) return;
  const float2 first = ptx::unpack_f16x2(high.x), second = ptx::unpack_f16x2(high.y);
  *reinterpret_cast<uint2*>(to + W) = {ptx::cvt_f16x2(y.x - first.x, y.y - first.y),
                                       ptx::cvt_f16x2(y.z - second.x, y.w - second.y)};
}

// The power for rows no longer than 2ᵏ.
__device__ __forceinline__ int power_for(int k) {
  return k == empty ? 0 : min(Powers::longest - k, 126);
}
// Of a bound for z_A, that of the longest rows of V and z_O.
constexpr int bound_of_z_a = 2 * Powers::longest + 1;

// A bound for the length of a chunk's rows.
template <int W>
__global__ void __launch_bounds__(block_threads)
    measure(const __grid_constant__ AttentionCall x, const __grid_constant__ SplitOperands operands) {
  __shared__ float tops_z[block_threads];
  constexpr int lanes = W / 4, rows = block_threads / lanes;
  const SplitOperands::Operand& a = operands.operand[blockIdx.y];
  if (blockIdx.x >= a.blocks(int(x.B))) return;
  const Chunk at(a, blockIdx.x);
  const KeyRange valid = rows_of(x, a, at.b);
  float top = 0, top_z = 0;  // of four columns, of z_ξ
#pragma unroll 4
  for (int n = 0; n < SplitOperands::chunk / rows; ++n) {
    const int row = at.chunk * SplitOperands::chunk + n * rows + threadIdx.x / lanes;
    const float4 p = piece(x, a, at, row, threadIdx.x % lanes * 4);
    if (row < valid.from || row >= valid.to) continue;
    top = largest(top, p);
    if (blockIdx.y == 3 && x.z_lse)
      top_z = fmaxf(top_z,
                    size_of_finite(static_cast<const float*>(x.z_lse)[(i64(at.b) * x.H + at.h) * x.L + row]));
  }
  tops_z[threadIdx.x] = top_z;
  const int k = exponent_of_rows<W, block_threads>(top);
  if (threadIdx.x >= 32) return;
  for (int n = threadIdx.x; n < block_threads; n += 32) top_z = fmaxf(top_z, tops_z[n]);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) top_z = fmaxf(top_z, __shfl_xor_sync(~0u, top_z, step));
  if (threadIdx.x == 0) a.greatest[blockIdx.x] = {k, exponent_above(double{top_z} * top_z)};
}

// A warp for the powers of a key head.
//
// z_A = P ⊛ (M ⊛ z_P − u), M of zeros and ones, is below 2·|z_o|·|v| + |z_ξ| of the longest rows.
__global__ void __launch_bounds__(32)
    choose(const __grid_constant__ AttentionCall x, const __grid_constant__ SplitOperands operands) {
  const int lane = threadIdx.x;
  int longest[4] = {empty, empty, empty, empty}, largest = empty;
  for (int n = 0; n < operands.count; ++n) {
    const SplitOperands::Operand& a = operands.operand[n];
    const i64 each = i64(a.heads / x.Hk) * a.chunks();
    for (i64 i = lane; i < each; i += 32) {
      const int2 g = a.greatest[blockIdx.x * each + i];
      longest[n] = max(longest[n], g.x), largest = max(largest, g.y);
    }
    longest[n] = __reduce_max_sync(~0u, longest[n]);
  }
  largest = __reduce_max_sync(~0u, largest);
  if (lane > 0) return;
  Powers p{power_for(longest[0]), power_for(longest[1]), power_for(longest[2]), power_for(longest[3]), 0};
  if (largest != empty) p.v = min(p.v, 90 - largest - p.z_o);  // z_ξ·2^(z_o + v) is far from f32's end
  int top = longest[2] == empty || longest[3] == empty ? empty : bound_of_z_a;
  if (largest != empty) top = max(top, largest + p.z_o + p.v);
  p.z_a = top == empty ? 0 : -top;
  operands.powers[blockIdx.x] = p;
}

// x·2ᵉ in one or two terms; columns beyond the row are zeros. From the last to the first: what was measured
// last may still be in the cache.
template <int W>
__global__ void __launch_bounds__(block_threads)
    split(const __grid_constant__ AttentionCall x, const __grid_constant__ SplitOperands operands) {
  constexpr int lanes = W / 4, rows = block_threads / lanes;
  const int operand = operands.count - 1 - blockIdx.y;
  const SplitOperands::Operand& a = operands.operand[operand];
  if (blockIdx.x >= a.blocks(int(x.B))) return;
  const Chunk at(a, a.blocks(int(x.B)) - 1 - blockIdx.x);
  const Powers& p = operands.powers[at.b * x.Hk + at.h / (a.heads / x.Hk)];
  const int e = operand == 0 ? p.q : operand == 1 ? p.k : operand == 2 ? p.v : p.z_o;
  const float unit = power_of_two(e);
  const int column = threadIdx.x % lanes * 4, stride = operands.terms * W;
  __half* to = a.to + (i64(at.b) * a.heads + at.h) * a.rows * stride;
#pragma unroll 4
  for (int n = 0; n < SplitOperands::chunk / rows; ++n) {
    const int row = at.chunk * SplitOperands::chunk + n * rows + threadIdx.x / lanes;
    const float4 v = piece(x, a, at, row, column);
    if (row >= a.rows) continue;
    put_terms<W>(to + i64(row) * stride + column, v, unit, operands.terms);
  }
}

// All three by a block for the rows of a key head of one operand, which are few: memory is read once, the
// second time is the cache. z_ξ is not looked at.
template <int W>
__global__ void __launch_bounds__(head_threads, 2)
    split_heads(const __grid_constant__ AttentionCall x, const __grid_constant__ SplitOperands operands) {
  __shared__ int power;
  constexpr int lanes = W / 4, rows = head_threads / lanes;
  const int operand = blockIdx.y;
  const SplitOperands::Operand& a = operands.operand[operand];
  const int group = a.heads / x.Hk, b = blockIdx.x / x.Hk, head = blockIdx.x % x.Hk * group;
  const int column = threadIdx.x % lanes * 4, stride = operands.terms * W;
  const auto each_piece = [&](auto&& f) {
    for (int h = head; h < head + group; ++h) {
      const float* from = a.from.at<float>(b, h) + column;
#pragma unroll 4
      for (int row = threadIdx.x / lanes; row < a.rows; row += rows)
        f(h, row,
          column < a.size ? *reinterpret_cast<const float4*>(from + row * a.from.row) : float4{0, 0, 0, 0});
    }
  };
  const KeyRange valid = rows_of(x, a, b);
  float top = 0;
  each_piece([&](int, int row, const float4& v) {
    if (row >= valid.from && row < valid.to) top = largest(top, v);
  });
  const int k = exponent_of_rows<W, head_threads>(top);
  if (threadIdx.x == 0) {
    power = power_for(k);
    Powers& p = operands.powers[blockIdx.x];
    (operand == 0 ? p.q : operand == 1 ? p.k : operand == 2 ? p.v : p.z_o) = power;
    if (operand == 0) p.z_a = -bound_of_z_a;
    if (operand == 0 && operands.count == 3) p.z_o = 0;
  }
  __syncthreads();
  const float unit = power_of_two(power);
  each_piece([&](int h, int row, const float4& v) {
    put_terms<W>(a.to + ((i64(b) * a.heads + h) * a.rows + row) * stride + column, v, unit, operands.terms);
  });
}

// Whether blocks for whole heads are enough to fill the GPU and short enough to end together.
bool takes_heads(const AttentionCall& x, const SplitOperands& operands, const Gpu& gpu) {
  constexpr i64 most_rows = 512;
  return !x.z_lse && x.T <= most_rows && i64(x.L) * (x.H / x.Hk) <= most_rows &&
         i64(x.B) * x.Hk * operands.count >= 2 * gpu.processors;
}

}  // namespace split_terms

void launch_split(const Stream& s, const AttentionCall& x, const SplitOperands& operands) {
  using namespace split_terms;
  i64 most = 0;
  for (const SplitOperands::Operand& a : operands.operand) most = std::max(most, a.blocks(int(x.B)));
  if (most == 0 || x.Hk == 0) return;
  const unsigned count = static_cast<unsigned>(operands.count), key_heads = blocks_for(i64(x.B) * x.Hk, 1);
  const dim3 grid(blocks_for(most, 1), count);
  with_constant<32, 64, 128>(operands.width, [&](auto width) {
    if (takes_heads(x, operands, s.gpu))
      return launch_kernel(s, {dim3(key_heads, count), head_threads}, split_heads<width>, x, operands);
    launch_kernel(s, {grid, block_threads}, measure<width>, x, operands);
    launch_kernel(s, {key_heads, 32}, choose, x, operands);
    launch_kernel(s, {grid, block_threads}, split<width>, x, operands);
  });
}

}  // namespace tg::cuda::attention
