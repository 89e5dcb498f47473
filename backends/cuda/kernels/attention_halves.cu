// f32 operands of attention as numbers of 16 bits: how long rows are, then powers of two and the numbers.
#include "backends/cuda/kernels/attention_halves.cuh"

#include <algorithm>
#include <cfloat>

namespace tg::cuda {

namespace {

constexpr int threads = 512, none = -10000;

// Rows [from, to) that any key or query of the call may meet: others may hold anything.
__device__ KeyRange rows_of(const Attention& x, const Halves::Operand& a, int b) {
  if (const int* cu = a.keys ? x.cu_k : x.cu_q) return {max(cu[0], 0), min(cu[x.segments], a.rows)};
  return {0, a.keys && x.lengths ? kv_length(x, b) : a.rows};
}

// k with √square < 2ᵏ; none of 0.
__device__ int exponent_above(double square) {
  if (square == 0) return none;
  int e;
  frexp(square, &e);
  return (e + 1) >> 1;
}

// |x|, but 0 of ∞ and NaN, which no power of two helps.
__device__ __forceinline__ float size_of_finite(float x) {
  return fabsf(x) <= FLT_MAX ? fabsf(x) : 0;
}

// A block's chunk of an operand.
struct Place {
  int b, h, chunk;
  __device__ Place(const Halves::Operand& a, int n)
      : b(n / a.chunks() / a.heads), h(n / a.chunks() % a.heads), chunk(n % a.chunks()) {}
};

// Four numbers of a row of an operand, zeros beyond it.
__device__ __forceinline__ float4 piece(const Attention& x, const Halves::Operand& a, const Place& at,
                                        int row, int column) {
  if (row >= a.rows || column >= a.size) return {0, 0, 0, 0};
  return *reinterpret_cast<const float4*>(a.from.at<float>(at.b, at.h) + row * a.from.row + column);
}

// A bound for the length of a chunk's rows, from the largest number of every four columns.
template <int W>
__global__ void __launch_bounds__(threads, 2)
    measure(const __grid_constant__ Attention x, const __grid_constant__ Halves halves) {
  __shared__ float tops[threads], tops_z[threads];
  constexpr int lanes = W / 4, rows = threads / lanes;
  const Halves::Operand& a = halves.operand[blockIdx.y];
  if (blockIdx.x >= a.blocks(x.B)) return;
  const Place at(a, blockIdx.x);
  const KeyRange valid = rows_of(x, a, at.b);
  float top = 0, top_z = 0;  // of four columns, of z_ξ
#pragma unroll 4
  for (int n = 0; n < Halves::chunk / rows; ++n) {
    const int row = at.chunk * Halves::chunk + n * rows + threadIdx.x / lanes;
    const float4 p = piece(x, a, at, row, threadIdx.x % lanes * 4);
    if (row < valid.from || row >= valid.to) continue;
    top = fmaxf(fmaxf(fmaxf(top, size_of_finite(p.x)), fmaxf(size_of_finite(p.y), size_of_finite(p.z))),
                size_of_finite(p.w));
    if (blockIdx.y == 3 && x.z_lse)
      top_z = fmaxf(top_z,
                    size_of_finite(static_cast<const float*>(x.z_lse)[(i64(at.b) * x.H + at.h) * x.L + row]));
  }
  tops[threadIdx.x] = top, tops_z[threadIdx.x] = top_z;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  for (int n = threadIdx.x; n < threads; n += 32) top_z = fmaxf(top_z, tops_z[n]);
  double square = 0;
  if (threadIdx.x < lanes) {
    for (int n = threadIdx.x; n < threads; n += lanes) top = fmaxf(top, tops[n]);
    square = 4. * top * top;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    square += __shfl_xor_sync(~0u, square, step);
    top_z = fmaxf(top_z, __shfl_xor_sync(~0u, top_z, step));
  }
  if (threadIdx.x == 0)
    a.greatest[blockIdx.x] = {exponent_above(square), exponent_above(double{top_z} * top_z)};
}

// The powers of a key head of all, b·Hk + h, by all threads of a block.
//
// z_A = P ⊛ (M ⊛ z_P − u), M of zeros and ones, is below 2·|z_o|·|v| + |z_ξ| of the longest rows.
__device__ Powers choose(const Attention& x, const Halves& halves, int key_head) {
  __shared__ int of_warp[threads / 32][5];
  int greatest[5] = {none, none, none, none, none};  // of rows of each operand, of z_ξ
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    if (n == halves.count) break;
    const Halves::Operand& a = halves.operand[n];
    const int each = a.heads / x.Hk * a.chunks();
    const int2* of_chunks = a.greatest + i64(key_head) * each;
#pragma unroll 1
    for (int i = threadIdx.x; i < each; i += threads) {
      const int2 g = of_chunks[i];
      greatest[n] = max(greatest[n], g.x), greatest[4] = max(greatest[4], g.y);
    }
  }
#pragma unroll
  for (int n = 0; n < 5; ++n) {
    const int of_lanes = __reduce_max_sync(~0u, greatest[n]);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32][n] = of_lanes;
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < 5; ++n)
    for (const auto& w : of_warp) greatest[n] = max(greatest[n], w[n]);
  const int largest = greatest[4];
  const auto power = [](int k) { return k == none ? 0 : min(Powers::longest - k, 126); };
  Powers p{power(greatest[0]), power(greatest[1]), power(greatest[2]), power(greatest[3]), 0};
  if (largest != none) p.v = min(p.v, 90 - largest - p.z_o);  // z_ξ·2^(z_o + v) is far from f32's end
  int top = greatest[2] == none || greatest[3] == none ? none : 2 * Powers::longest + 1;
  if (largest != none) top = max(top, largest + p.z_o + p.v);
  p.z_a = top == none ? 0 : -top;
  return p;
}

// x·2ᵉ in one or two terms; columns beyond the row are zeros. From the last to the first: what was measured
// last may still be in the cache.
template <int W>
__global__ void __launch_bounds__(threads, 2)
    split(const __grid_constant__ Attention x, const __grid_constant__ Halves halves) {
  constexpr int lanes = W / 4, rows = threads / lanes;
  const int operand = halves.count - 1 - blockIdx.y;
  const Halves::Operand& a = halves.operand[operand];
  if (blockIdx.x >= a.blocks(x.B)) return;
  const Place at(a, a.blocks(x.B) - 1 - blockIdx.x);
  const int column = threadIdx.x % lanes * 4, stride = halves.terms * W;
  const auto row_of = [&](int n) { return at.chunk * Halves::chunk + n * rows + int(threadIdx.x) / lanes; };
  float4 v[Halves::chunk / rows];
#pragma unroll
  for (int n = 0; n < Halves::chunk / rows; ++n) v[n] = piece(x, a, at, row_of(n), column);
  const int group = a.heads / x.Hk, key_head = at.b * x.Hk + at.h / group;
  const Powers p = choose(x, halves, key_head);
  if (at.chunk == 0 && at.h % group == 0 && threadIdx.x == 0) halves.powers[key_head] = p;  // by all operands
  const int e = operand == 0 ? p.q : operand == 1 ? p.k : operand == 2 ? p.v : p.z_o;
  const float unit = attn::power_of_two(e);
  __half* to = a.to + (i64(at.b) * a.heads + at.h) * a.rows * stride;
#pragma unroll
  for (int n = 0; n < Halves::chunk / rows; ++n) {
    const int row = row_of(n);
    if (row >= a.rows) break;
    const float4 y = {v[n].x * unit, v[n].y * unit, v[n].z * unit, v[n].w * unit};
    const uint2 high = {ptx::cvt_f16x2(y.x, y.y), ptx::cvt_f16x2(y.z, y.w)};
    __half* out = to + i64(row) * stride + column;
    *reinterpret_cast<uint2*>(out) = high;
    if (halves.terms == 1) continue;
    const float2 first = ptx::unpack_f16x2(high.x), second = ptx::unpack_f16x2(high.y);
    *reinterpret_cast<uint2*>(out + W) = {ptx::cvt_f16x2(y.x - first.x, y.y - first.y),
                                          ptx::cvt_f16x2(y.z - second.x, y.w - second.y)};
  }
}

}  // namespace

Halves::Halves(const Attention& x, bool backward, std::byte* base) : terms(x.tf32 ? 1 : 2) {
  attn::with_width(x, [&](auto size) { width = size; });
  const auto take = [&](std::size_t n) {
    std::byte* p = base + bytes;
    bytes += (n + 255) / 256 * 256;
    return static_cast<void*>(p);
  };
  const auto add = [&](Operand& to, const Attention::Operand& from, int heads, int rows, int size,
                       bool keys) {
    to.from = from, to.heads = heads, to.rows = rows, to.size = size, to.keys = keys;
    const std::size_t all = std::size_t(x.B) * heads;
    to.to = static_cast<__half*>(take(all * rows * terms * width * sizeof(__half)));
    to.greatest = static_cast<int2*>(take(all * to.chunks() * sizeof(int2)));
  };
  add(operand[0], x.q, x.H, x.L, x.d, false);
  add(operand[1], x.k, x.Hk, x.T, x.d, true);
  add(operand[2], x.v, x.Hk, x.T, x.dv, true);
  if (backward) count = 4, add(operand[3], x.z_o, x.H, x.L, x.dv, false);
  powers = static_cast<Powers*>(take(std::size_t(x.B) * x.Hk * sizeof(Powers)));
}

Attention Halves::in_place_of(Attention x) const {
  Attention::Operand* const to[4] = {&x.q, &x.k, &x.v, &x.z_o};
  for (int n = 0; n < count; ++n) {
    const Operand& a = operand[n];
    const i64 row = terms * width, head = row * a.rows;
    *to[n] = {a.to, head * a.heads, head, row};
  }
  x.powers = powers;
  return x;
}

void launch_halves(const Stream& s, const Attention& x, const Halves& halves) {
  i64 most = 0;
  for (const Halves::Operand& a : halves.operand) most = std::max(most, a.blocks(x.B));
  if (most == 0 || x.Hk == 0) return;
  const dim3 grid(blocks_for(most, 1), static_cast<unsigned>(halves.count));
  attn::with_width(x, [&](auto width) {
    launch_kernel(s, {grid, threads}, measure<width>, x, halves);
    launch_kernel(s, {grid, threads}, split<width>, x, halves);
  });
}

}  // namespace tg::cuda
