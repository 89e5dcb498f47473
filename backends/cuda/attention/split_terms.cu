// Converts f32 operands of attention to f16 terms: measures row lengths, chooses powers of two, writes the
// terms.
#include <algorithm>
#include <cfloat>

#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/powers.cuh"
#include "backends/cuda/kernels/elements.cuh"

namespace tg::cuda::attention {

namespace split_terms {

using Operand = SplitOperands::Operand;
constexpr int block_threads = 256, empty = -10000;

// A block's share of an operand: rows of some heads.
struct Part {
  int b, head, heads;
  KeyRange rows;
};
__device__ Part chunk_of(const Operand& a, int n) {
  const int head = n / a.chunks(), row0 = n % a.chunks() * SplitOperands::chunk;
  return {head / a.heads, head % a.heads, 1, {row0, min(row0 + SplitOperands::chunk, a.rows)}};
}
// The rows of it that the call reads: memory of others may hold anything.
__device__ Part valid(const AttentionCall& x, const Operand& a, Part part) {
  if (const int* cu = a.keys ? x.cu_k : x.cu_q)
    part.rows = {max(cu[0], part.rows.from), min(cu[x.segments], part.rows.to)};
  else if (a.keys && x.lengths)
    part.rows.to = min(kv_length(x, part.b), part.rows.to);
  return part;
}

// f(h, row, column, numbers) for the thread's four columns of each row; zeros past the operand's last column.
template <int W, int Threads, class F>
__device__ __forceinline__ void for_each_piece(const Operand& a, const Part& part, F&& f) {
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

// The larger of `top` and |x|; ∞ and NaN are ignored, since no power of two helps them.
__device__ __forceinline__ float larger(float top, float x) {
  return fabsf(x) <= FLT_MAX ? fmaxf(top, fabsf(x)) : top;
}

// k with √square < 2ᵏ; `empty` of 0.
__device__ int exponent_above(double square) {
  if (square == 0) return empty;
  int e;
  frexp(square, &e);
  return (e + 1) >> 1;
}

// k with 2ᵏ above the length of the part's rows, from the largest number in each column. Known to the first
// warp.
template <int W, int Threads>
__device__ __forceinline__ int exponent_of_rows(const Operand& a, const Part& part) {
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

// The exponent for rows no longer than 2ᵏ, and where it is kept.
__device__ __forceinline__ int power_for(int k) {
  return k == empty ? 0 : min(Powers::longest - k, 126);
}
__device__ __forceinline__ int& power_of(Powers& p, int operand) {
  return operand == 0 ? p.q : operand == 1 ? p.k : operand == 2 ? p.v : p.z_o;
}
// The exponent of a bound of z_A, from the longest rows of V and z_O.
constexpr int bound_of_z_a = 2 * Powers::longest + 1;

// The part times 2ᵉ in one or two terms.
template <int W, int Threads>
__device__ __forceinline__ void write_terms(const Operand& a, const Part& part, int e, int terms) {
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

// Bounds for the length of a chunk's rows and, for z_O, of |z_ξ|. By a block; the first thread has stored
// them.
template <int W>
__device__ __forceinline__ void measure(const AttentionCall& x, const SplitOperands& operands, int operand,
                                        int chunk) {
  const Operand& a = operands.operand[operand];
  const Part part = valid(x, a, chunk_of(a, chunk));
  const int k = exponent_of_rows<W, block_threads>(a, part);
  if (threadIdx.x >= 32) return;
  float top = 0;
  if (operand == 3 && x.z_lse) {
    const float* z = static_cast<const float*>(x.z_lse) + (i64(part.b) * x.H + part.head) * x.L;
    for (int row = part.rows.from + threadIdx.x; row < part.rows.to; row += 32) top = larger(top, z[row]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
  }
  if (threadIdx.x == 0) a.greatest[chunk] = {k, exponent_above(double{top} * top)};
}

// One warp chooses the powers of a key head.
//
// z_A = P ⊛ (M ⊛ z_P − u), M of zeros and ones, is below 2·|z_o|·|v| + |z_ξ| of the longest rows.
__device__ __forceinline__ void choose(const AttentionCall& x, const SplitOperands& operands, int key_head) {
  const int lane = threadIdx.x;
  int longest[4] = {empty, empty, empty, empty}, largest = empty;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    if (n >= operands.count) break;
    const Operand& a = operands.operand[n];
    const int each = a.heads / x.Hk * a.chunks();
    const volatile int2* greatest = a.greatest + i64{key_head} * each;  // written by other multiprocessors
    for (int i = lane; i < each; i += 32)
      longest[n] = max(longest[n], greatest[i].x), largest = max(largest, greatest[i].y);
    longest[n] = __reduce_max_sync(~0u, longest[n]);
  }
  largest = __reduce_max_sync(~0u, largest);
  if (lane > 0) return;
  Powers p{power_for(longest[0]), power_for(longest[1]), power_for(longest[2]), power_for(longest[3]), 0};
  if (largest != empty) p.v = min(p.v, 90 - largest - p.z_o);  // z_ξ·2^(z_o + v) must not overflow f32
  int top = longest[2] == empty || longest[3] == empty ? empty : bound_of_z_a;
  if (largest != empty) top = max(top, largest + p.z_o + p.v);
  p.z_a = top == empty ? 0 : -top;
  operands.powers[key_head] = p;
}

// The order of work. Key heads come in sections that stay in the cache from the first reading to the second:
// blocks that measure chunks of a section, then those that write the section before it, which wait until its
// powers are chosen. They wait only for blocks before them in the grid, which start first.
struct Sections {
  int key_heads, together, chunks;  // of all; key heads of a section; chunks of a key head, of all operands
  TG_HOST_DEVICE int blocks() const { return together * chunks; }
  TG_HOST_DEVICE int count() const { return (key_heads + together - 1) / together; }
};
template <int W>
__global__ void __launch_bounds__(block_threads, 5)
    split(const __grid_constant__ AttentionCall x, const __grid_constant__ SplitOperands operands,
          const Sections sections) {
  const int round = blockIdx.x / (2 * sections.blocks()), nth = blockIdx.x % (2 * sections.blocks());
  const bool measures = nth < sections.blocks();
  const int of_section = measures ? nth : nth - sections.blocks(),
            key_head = (measures ? round : round - 1) * sections.together + of_section / sections.chunks;
  if (key_head < 0 || key_head >= sections.key_heads) return;
  int operand = 0, chunk = of_section % sections.chunks, each;
  for (;; ++operand, chunk -= each) {
    each = operands.operand[operand].heads / x.Hk * operands.operand[operand].chunks();
    if (chunk < each) break;
  }
  chunk += key_head * each;
  int* const done = operands.done + key_head;  // chunks that are measured; one more: powers are chosen
  if (measures) {
    measure<W>(x, operands, operand, chunk);
    if (threadIdx.x >= 32) return;
    __threadfence();
    const int before = __reduce_max_sync(~0u, threadIdx.x == 0 ? atomicAdd(done, 1) : 0);
    if (before + 1 < sections.chunks) return;
    __threadfence();
    choose(x, operands, key_head);
    __threadfence();
    if (threadIdx.x == 0) atomicAdd(done, 1);
  } else {
    if (threadIdx.x == 0) {
      while (*static_cast<volatile int*>(done) <= sections.chunks) {
      }
      __threadfence();
    }
    __syncthreads();
    const Operand& a = operands.operand[operand];
    write_terms<W, block_threads>(a, chunk_of(a, chunk), power_of(operands.powers[key_head], operand),
                                  operands.terms);
  }
}

}  // namespace split_terms

void launch_split(const Stream& s, const AttentionCall& x, const SplitOperands& operands) {
  using namespace split_terms;
  constexpr i64 cached = 16 << 20;  // bytes
  if (x.B == 0 || x.Hk == 0) return;
  Sections sections{static_cast<int>(x.B) * x.Hk, 1, 0};
  for (int n = 0; n < operands.count; ++n)
    sections.chunks += operands.operand[n].heads / x.Hk * operands.operand[n].chunks();
  if (sections.chunks == 0) return;
  const i64 head = i64{sections.chunks} * SplitOperands::chunk * operands.width * 4;
  sections.together = static_cast<int>(std::clamp<i64>(cached / head, 1, sections.key_heads));
  cudaMemsetAsync(operands.done, 0, sections.key_heads * sizeof(int), s.stream);
  const unsigned blocks = blocks_for(i64{sections.count() + 1} * 2 * sections.blocks(), 1);
  with_constant<32, 64, 128>(operands.width, [&](auto width) {
    launch_kernel(s, {blocks, block_threads}, split<width>, x, operands, sections);
  });
}

}  // namespace tg::cuda::attention
