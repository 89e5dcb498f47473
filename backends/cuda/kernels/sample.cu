// sample: a token for each row of logits, by the weights of ops/sample.h. A block has a row. It reads the
// logits anew for whatever it needs of them, and computes the weights again where they count. Compiled
// without contraction of products and sums, as random.cu is.
#include "backends/cuda/kernels/rows.cuh"
#include "ops/sample.h"

namespace tg::cuda {

namespace {

using Weight = unsigned long long;

struct SampleRows {
  RowLayout logits, temperature, keys, top_k, top_p;
  DType type, temperature_type, top_k_type, top_p_type;
  i64 n, rows;
  bool cut;
  int bits;  // sample_bits(n): in device code std::bit_width is not what it is on the host (nvcc 13.0)
  int* out;  // [B]
};

constexpr int most_sample_warps = 32;

// op over the values of a block's threads, for each of them.
template <class T, class Op>
__device__ T over_block(T v, Op op) {
  __shared__ T of_warp[most_sample_warps];
#pragma unroll
  for (int by = 16; by > 0; by /= 2) v = op(v, __shfl_xor_sync(0xffffffffu, v, by));
  __syncthreads();  // others may still read what the call before left
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
  __syncthreads();
  T all = of_warp[0];
  for (int w = 1; w < blockDim.x / 32; ++w) all = op(all, of_warp[w]);
  return all;
}
template <class T>
__device__ T sum_over_block(T v) {
  return over_block(v, [](T a, T b) { return a + b; });
}

// A row of logits, read by the block's threads.
template <class C>
struct LogitRow {
  using Order = decltype(order_of(C()));
  const void* data;
  DType type;
  i64 first, step, n;

  __device__ C at(i64 i) const { return load_as<C>(data, type, first + i * step); }

  // Σ f(i, logit)
  template <class F>
  __device__ Weight sum(F f) const {
    Weight total = 0;
#pragma unroll 4
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) total += f(i, at(i));
    return sum_over_block(total);
  }

  // The first i for which Σ f over tokens 0 … i exceeds `target`, which is below the sum over all. The warps
  // take a piece each of the range that is left, and the one with the place in it becomes the range.
  template <class F>
  __device__ i64 find(Weight target, F f) const {
    __shared__ Weight of_piece[most_sample_warps];
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
    i64 begin = 0, end = n;
    while (end - begin > 1) {
      const i64 piece = (end - begin + warps - 1) / warps, from = begin + warp * piece,
                to = from + piece < end ? from + piece : end;
      Weight v = 0;
      for (i64 i = from + threadIdx.x % 32; i < to; i += 32) v += f(i, at(i));
#pragma unroll
      for (int by = 16; by > 0; by /= 2) v += __shfl_xor_sync(0xffffffffu, v, by);
      __syncthreads();
      if (threadIdx.x % 32 == 0) of_piece[warp] = v;
      __syncthreads();
      int w = 0;
      for (; w < warps - 1 && target >= of_piece[w]; ++w) target -= of_piece[w];
      begin += w * piece;
      if (begin + piece < end) end = begin + piece;
    }
    return begin;
  }
};

// The tokens whose logits are above `least`, and those equal to it up to token `last`.
template <class Order>
struct Likeliest {
  Order least = 0;
  i64 last = LLONG_MAX;
  __device__ bool has(Order order, i64 i) const { return order > least || (order == least && i <= last); }
};

// The likeliest tokens, as few as have at least `needed` of `amount` together: of equal ones the first. Finds
// `least` by its digits of two bits, the highest first.
template <class C, class F>
__device__ Likeliest<typename LogitRow<C>::Order> likeliest(const LogitRow<C>& row, Weight needed, F amount) {
  using Order = typename LogitRow<C>::Order;
  Order least = 0;
  for (int shift = static_cast<int>(sizeof(Order)) * 8 - 2; shift >= 0; shift -= 2) {
    Weight of_digit[4] = {};
#pragma unroll 4
    for (i64 i = threadIdx.x; i < row.n; i += blockDim.x) {
      const C logit = row.at(i);
      const Order order = order_of(logit);
      const int digit = static_cast<int>(order >> shift & 3);
      if ((order >> shift >> 2) != (least >> shift >> 2) || digit == 0) continue;
      const Weight a = amount(i, logit);
#pragma unroll
      for (int d = 1; d < 4; ++d) of_digit[d] += d == digit ? a : 0;
    }
    int digit = 3;
    for (; digit > 0; --digit) {
      const Weight a = sum_over_block(of_digit[digit]);
      if (a >= needed) break;
      needed -= a;
    }
    least |= static_cast<Order>(digit) << shift;
  }
  return {least, row.find(needed - 1, [&](i64 i, C logit) {
            return order_of(logit) == least ? amount(i, logit) : Weight{0};
          })};
}

template <class C>
__device__ i64 token_of(const SampleRows& a, i64 r) {
  const LogitRow<C> row{a.logits.data, a.type, a.logits.offset(r), a.logits.step, a.n};
  using Order = typename LogitRow<C>::Order;
  Order greatest = 0;
  i64 place = LLONG_MAX;
#pragma unroll 4
  for (i64 i = threadIdx.x; i < a.n; i += blockDim.x) {
    const Order order = order_of(row.at(i));
    if (order > greatest || place == LLONG_MAX) greatest = order, place = i;
  }
  const Order top = over_block(greatest, [](Order x, Order y) { return x > y ? x : y; });
  const i64 best =
      over_block(greatest == top ? place : LLONG_MAX, [](i64 x, i64 y) { return x < y ? x : y; });
  const double logit = static_cast<double>(row.at(best)),
               temperature = load_as<double>(a.temperature.data, a.temperature_type, a.temperature.offset(r));
  if (logit != logit) return -1;  // NaN is before all others: all are
  if (!is_drawn(temperature) || logit - logit != 0) return best;

  const double rate = 1 / temperature;
  const auto weight = [&](i64, C x) -> Weight {
    return sample_weight(static_cast<double>(x), logit, rate, a.bits);
  };
  Likeliest<Order> kept;
  const auto kept_weight_of = [&](i64 i, C x) -> Weight {
    return kept.has(order_of(x), i) ? weight(i, x) : 0;
  };
  if (a.cut) {
    const i64 k = load_as<i64>(a.top_k.data, a.top_k_type, a.top_k.offset(r));
    const double p = load_as<double>(a.top_p.data, a.top_p_type, a.top_p.offset(r));
    if (k > 0 && k < a.n) kept = likeliest(row, static_cast<Weight>(k), [](i64, C) -> Weight { return 1; });
    // Weights of tokens that top_k leaves out are not needed to reach a share of the others.
    if (p < 1) kept = likeliest(row, kept_weight(row.sum(kept_weight_of), p), weight);
  }
  const i64 key = 2 * r;
  const auto seed = load_as<i64>(a.keys.data, DType::i64, a.keys.offset(key)),
             k = load_as<i64>(a.keys.data, DType::i64, a.keys.offset(key + 1));
  const Weight fraction = sample_fraction(static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(k));
  return row.find(share_of(row.sum(kept_weight_of), fraction), kept_weight_of);
}

template <class C>
__global__ void __launch_bounds__(32 * most_sample_warps) draw_tokens(const __grid_constant__ SampleRows a) {
  for (i64 r = blockIdx.x; r < a.rows; r += gridDim.x) {
    const i64 token = token_of<C>(a, r);
    if (threadIdx.x == 0) a.out[r] = static_cast<int>(token);
  }
}

void launch_sample(const Stream& s, const Call& c) {
  const Shape& shape = c.in[0].layout.shape;
  if (shape[0] == 0) return;
  const bool cut = c.in.size() == 5;
  const Arg &top_k = c.in[cut ? 3 : 2], &top_p = c.in[cut ? 4 : 1];
  const SampleRows a{RowLayout(c.in[0], 1),
                     RowLayout(c.in[1], -1),
                     RowLayout(c.in[2], -1),
                     RowLayout(top_k, -1),
                     RowLayout(top_p, -1),
                     c.in[0].dtype,
                     c.in[1].dtype,
                     top_k.dtype,
                     top_p.dtype,
                     shape[1],
                     shape[0],
                     cut,
                     sample_bits(static_cast<std::uint64_t>(shape[1])),
                     reinterpret_cast<int*>(c.out[0].data)};
  const LaunchShape launch{blocks_for(a.rows, 1), a.n <= 4096 ? 128u : 32u * most_sample_warps};
  compute_type(a.type) == DType::f64 ? launch_kernel(s, launch, draw_tokens<double>, a)
                                     : launch_kernel(s, launch, draw_tokens<float>, a);
}

}  // namespace

extern const Kernel sample_kernel{&launch_sample};

}  // namespace tg::cuda
