// Splits f32 attention operands into one or two f16 values per element. Measures row lengths, chooses powers
// of two, and writes the values. Uses three launches. If there are enough short heads, uses one launch with a
// block for each head.
#include <algorithm>
#include <cfloat>

#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/stages/score.cuh"
#include "backends/cuda/kernels/elements.cuh"

namespace tg::cuda::attention {

namespace split_to_f16 {

using SplitOperand = SplitOperands::SplitOperand;
constexpr int block_threads = 256, head_threads = 512, empty = -10000;

// A block's part of an operand: rows of one or more heads.
struct Part {
  int b, head, heads;
  KeyRange rows;
};
__device__ Part chunk_of(const SplitOperand& a, int n) {
  const int head = n / a.chunks(), row0 = n % a.chunks() * SplitOperands::chunk;
  return {head / a.heads, head % a.heads, 1, {row0, min(row0 + SplitOperands::chunk, a.rows)}};
}
// Restricts a part to the rows that the call reads, because other rows may contain anything.
__device__ Part valid(const AttentionCall& x, const SplitOperand& a, Part part) {
  if (const int* cu = a.keys ? x.cu_k : x.cu_q)
    part.rows = {max(cu[0], part.rows.from), min(cu[x.segments], part.rows.to)};
  else if (a.keys && x.lengths)
    part.rows.to = min(kv_length(x, part.b), part.rows.to);
  return part;
}

// Calls f(h, row, column, values) for the thread's four columns of each row. Columns past the operand's last
// one are zeros.
template <int W, int Threads, class F>
__device__ __forceinline__ void for_each_piece(const SplitOperand& a, const Part& part, F&& f) {
  constexpr int lanes = W / 4;
  const int column = threadIdx.x % lanes * 4;
  for (int h = part.head; h < part.head + part.heads; ++h) {
    const float* from = a.from.at<float>(part.b, h) + column;
#pragma unroll 4
    for (int row = part.rows.from + threadIdx.x / lanes; row < part.rows.to; row += Threads / lanes)
      f(h, row, column,
        column < a.size ? *reinterpret_cast<const float4*>(from + row * a.from.row) : float4{});
  }
}

// The larger of `top` and |x|. ∞ and NaN are ignored because no scale represents them.
__device__ __forceinline__ float larger(float top, float x) {
  return fabsf(x) <= FLT_MAX ? fmaxf(top, fabsf(x)) : top;
}

// Returns k such that √square < 2ᵏ, or `empty` if square is 0.
__device__ int exponent_above(double square) {
  if (square == 0) return empty;
  int e;
  frexp(square, &e);
  return (e + 1) >> 1;
}

// Returns k such that 2ᵏ exceeds the length of every row of the part. It is derived from the largest element
// of each column. The result is valid in the first warp.
template <int W, int Threads>
__device__ __forceinline__ int exponent_of_rows(const SplitOperand& a, const Part& part) {
  __shared__ float tops[Threads];
  float top = 0;  // of four columns
  for_each_piece<W, Threads>(a, part, [&](int, int, int, const float4& v) {
    top = larger(larger(larger(larger(top, v.x), v.y), v.z), v.w);
  });
  tops[threadIdx.x] = top;
  __syncthreads();
  double square = 0;
  if (threadIdx.x < W / 4) {
    for (int n = threadIdx.x; n < Threads; n += W / 4) top = fmaxf(top, tops[n]);
    square = 4. * top * top;
  }
  if (threadIdx.x < 32)
#pragma unroll
    for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(~0u, square, step);
  return exponent_above(square);
}

// The scaling exponent for rows of length at most 2ᵏ. power_of() is its location for an operand.
__device__ __forceinline__ int power_for(int k) {
  return k == empty ? 0 : min(Powers::longest - k, 126);
}
__device__ __forceinline__ int& power_of(Powers& p, int operand) {
  return operand == 0 ? p.q : operand == 1 ? p.k : operand == 2 ? p.v : p.z_o;
}
// If z_ξ is 0 and the scaled rows of V and z_O have at most length 2^longest, the scaled z_A is at most
// 2^bound_of_z_a.
constexpr int bound_of_z_a = 2 * Powers::longest + 1;

// Writes the part times 2ᵉ as one or two f16 values per element.
template <int W, int Threads>
__device__ __forceinline__ void write_terms(const SplitOperand& a, const Part& part, int e, int terms) {
  const float unit = power_of_two(e);
  for_each_piece<W, Threads>(a, part, [&](int h, int row, int column, const float4& v) {
    __half* to = a.to + ((i64(part.b) * a.heads + h) * a.rows + row) * (terms * W) + column;
    const float4 y = {v.x * unit, v.y * unit, v.z * unit, v.w * unit};
    const uint2 high = {ptx::cvt_f16x2(y.x, y.y), ptx::cvt_f16x2(y.z, y.w)};
    *reinterpret_cast<uint2*>(to) = high;
    if (terms == 1) return;
    const float2 first = ptx::unpack_f16x2(high.x), second = ptx::unpack_f16x2(high.y);
    *reinterpret_cast<uint2*>(to + W) = {ptx::cvt_f16x2(y.x - first.x, y.y - first.y),
                                         ptx::cvt_f16x2(y.z - second.x, y.w - second.y)};
  });
}

// Bounds the length of a chunk's rows and, for z_O, |z_ξ|.
template <int W>
__global__ void __launch_bounds__(block_threads)
    measure(const __grid_constant__ AttentionCall x, const __grid_constant__ SplitOperands operands) {
  const SplitOperand& a = operands.operand[blockIdx.y];
  if (blockIdx.x >= a.blocks(int(x.B))) return;
  const Part part = valid(x, a, chunk_of(a, blockIdx.x));
  const int k = exponent_of_rows<W, block_threads>(a, part);
  if (threadIdx.x >= 32) return;
  float top = 0;
  if (blockIdx.y == 3 && x.z_lse) {
    const float* z = static_cast<const float*>(x.z_lse) + (i64(part.b) * x.H + part.head) * x.L;
    for (int row = part.rows.from + threadIdx.x; row < part.rows.to; row += 32) top = larger(top, z[row]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
  }
  if (threadIdx.x == 0) a.greatest[blockIdx.x] = {k, exponent_above(double{top} * top)};
}

// One warp chooses the exponents of a key head. z_A is P ⊛ (M ⊛ z_P − u), where M contains zeros and ones. It
// is below 2·|z_o|·|v| + |z_ξ| for the longest rows.
__global__ void __launch_bounds__(32)
    choose(const __grid_constant__ AttentionCall x, const __grid_constant__ SplitOperands operands) {
  const int lane = threadIdx.x;
  int longest[4] = {empty, empty, empty, empty}, largest = empty;
  for (int n = 0; n < operands.count; ++n) {
    const SplitOperand& a = operands.operand[n];
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
  if (largest != empty) p.v = min(p.v, 90 - largest - p.z_o);  // z_ξ·2^(z_o + v) must not overflow f32
  int top = longest[2] == empty || longest[3] == empty ? empty : bound_of_z_a;
  if (largest != empty) top = max(top, largest + p.z_o + p.v);
  p.z_a = top == empty ? 0 : -top;
  operands.powers[blockIdx.x] = p;
}

// Writes the f16 values of a chunk, with full occupancy. Chunks are processed from last to first, because the
// chunks measured last may still be in the cache.
template <int W>
__global__ void __launch_bounds__(block_threads, 8)
    split(const __grid_constant__ AttentionCall x, const __grid_constant__ SplitOperands operands) {
  const int operand = operands.count - 1 - blockIdx.y;
  const SplitOperand& a = operands.operand[operand];
  const int blocks = a.blocks(int(x.B)), n = blocks - 1 - int(blockIdx.x);
  if (n < 0) return;
  const Part part = chunk_of(a, n);
  Powers& p = operands.powers[part.b * x.Hk + part.head / (a.heads / x.Hk)];
  write_terms<W, block_threads>(a, part, power_of(p, operand), operands.terms);
}

// Performs all three steps in one block, for one operand of a key head with few rows. The second read then
// hits the cache. Does not read z_ξ.
template <int W>
__global__ void __launch_bounds__(head_threads, 2)
    split_heads(const __grid_constant__ AttentionCall x, const __grid_constant__ SplitOperands operands) {
  __shared__ int power;
  const int operand = blockIdx.y;
  const SplitOperand& a = operands.operand[operand];
  const int key_head = blockIdx.x % x.Hk, group = a.heads / x.Hk;
  const Part part{int(blockIdx.x / x.Hk), key_head * group, group, {0, a.rows}};
  const int k = exponent_of_rows<W, head_threads>(a, valid(x, a, part));
  if (threadIdx.x == 0) {
    Powers& p = operands.powers[blockIdx.x];
    power_of(p, operand) = power = power_for(k);
    if (operand == 0) p.z_a = -bound_of_z_a;
    if (operand == 0 && operands.count == 3) p.z_o = 0;
  }
  __syncthreads();
  write_terms<W, head_threads>(a, part, power, operands.terms);
}

// Whether one block per key head and operand fills the GPU and has little work.
bool takes_heads(const AttentionCall& x, const SplitOperands& operands, const Gpu& gpu) {
  constexpr i64 most_rows = 512;
  return !x.z_lse && x.T <= most_rows && i64(x.L) * (x.H / x.Hk) <= most_rows &&
         i64(x.B) * x.Hk * operands.count >= 2 * gpu.processors;
}

}  // namespace split_to_f16

void launch_split(const Stream& s, const AttentionCall& x, const SplitOperands& operands) {
  using namespace split_to_f16;
  i64 most = 0;
  for (const SplitOperands::SplitOperand& a : operands.operand) most = std::max(most, a.blocks(int(x.B)));
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
