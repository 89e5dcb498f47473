// sample: draws a token for each row of logits, with the weights of ops/sample.h. Long rows are split into
// pieces, one per block. One kernel finds the most likely token of each piece, and a second kernel sums the
// weights of each piece. A third kernel has one block for each row and draws the token. Short rows, and rows
// restricted by top_k or top_p, use only the last kernel. It may read the logits several times. A model's
// weights evict code from the L2 cache. Code that runs once per token is therefore fetched from memory. For
// this reason the common path is short, and loops are unrolled only if that is faster. Like random.cu, this
// file is compiled without FMA contraction.
#include "backends/cuda/kernels/rows.cuh"
#include "ops/sample.h"

namespace tg::cuda {

namespace {

using Weight = unsigned long long;

constexpr i64 logits_of_piece = 4096;
constexpr unsigned piece_threads = 256, most_sample_warps = 32;

struct SampleRows {
  RowLayout logits, temperature, keys, top_k, top_p;
  DType temperature_type, top_k_type, top_p_type;
  i64 n, rows;
  bool cut;
  int bits;                   // sample_bits(n); std::bit_width differs in device code (nvcc 13.0)
  bool constant_temperature;  // no step writes it
  int* out;                   // [B]
  // If rows have pieces, for each piece [B, pieces]: the most likely token, its order, and the sum of the
  // weights.
  int pieces;
  int* likeliest;
  Weight *orders, *weights;

  __device__ double temperature_of(i64 r) const {
    return load_as<double>(temperature.data, temperature_type, temperature.offset(r));
  }
};

// Apply op over the values of a warp's lanes, or of a block's threads. All of them receive the result.
template <class T, class Op>
__device__ T over_warp(T v, Op op) {
#pragma unroll 1
  for (int by = 16; by > 0; by /= 2) v = op(v, from_lane_xor(v, by));
  return v;
}
template <class T, class Op>
__device__ T over_block(T v, Op op) {
  __shared__ T of_warp[most_sample_warps];
  v = over_warp(v, op);
  __syncthreads();  // other threads may still read the result of the previous call
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
  __syncthreads();
  T all = of_warp[0];
#pragma unroll 1
  for (int w = 1; w < blockDim.x / 32; ++w) all = op(all, of_warp[w]);
  return all;
}
template <class T>
__device__ T sum_over_block(T v) {
  return over_block(v, [](T a, T b) { return a + b; });
}

// The most likely of some tokens. If several are equally likely, it is the first. Token is as wide as Order,
// so that there is no padding.
template <class Order>
struct Likely {
  using Token = std::conditional_t<sizeof(Order) == 8, i64, int>;
  Order order = 0;
  Token token = INT_MAX;
};
using cuda::from_lane_xor;
template <class Order>
__device__ Likely<Order> from_lane_xor(const Likely<Order>& v, int by) {
  return {from_lane_xor(v.order, by), from_lane_xor(v.token, by)};
}
struct Likelier {
  template <class T>
  __device__ __forceinline__ T operator()(const T& a, const T& b) const {
    return b.order > a.order || (b.order == a.order && b.token < a.token) ? b : a;
  }
};

// A row of logits. All threads of the block read it.
template <class S>
struct LogitRow {
  using C = compute_t<S>;
  using Order = decltype(order_of(C()));
  const S* data;
  i64 step, n;

  __device__ LogitRow(const SampleRows& a, i64 r) : data(a.logits.at<S>(r)), step(a.logits.step), n(a.n) {}
  __device__ C at(i64 i) const { return widen(data[i * step]); }

  // Calls f(i, logit) for tokens begin … end − 1. The tokens are distributed over `threads` threads.
  template <class F>
  __device__ __forceinline__ void each(i64 begin, i64 end, int thread, int threads, F f) const {
    constexpr int together = 8;
    for (i64 i = begin + thread; i < end; i += i64{together} * threads) {
      C x[together];
#pragma unroll
      for (int e = 0; e < together; ++e) x[e] = i + e * threads < end ? at(i + e * threads) : C(0);
#pragma unroll
      for (int e = 0; e < together; ++e)
        if (i + e * threads < end) f(i + e * threads, x[e]);
    }
  }
  // Returns the most likely of tokens begin … end − 1.
  __device__ Likely<Order> best(i64 begin, i64 end) const {
    Likely<Order> best;
    each(begin, end, threadIdx.x, blockDim.x, [&](i64 i, C x) {
      best = Likelier()(best, Likely<Order>{order_of(x), static_cast<typename Likely<Order>::Token>(i)});
    });
    return over_block(best, Likelier());
  }
  // Returns Σ f(i, logit) over tokens begin … end − 1.
  template <class F>
  __device__ Weight sum(i64 begin, i64 end, F f) const {
    Weight total = 0;
    each(begin, end, threadIdx.x, blockDim.x, [&](i64 i, C x) { total += f(i, x); });
    return sum_over_block(total);
  }
  // Returns the first of tokens begin … end − 1 at which the running sum of f exceeds `target`. `target` is
  // below the total. In each round, the remaining range is split among the warps. The piece that contains the
  // token becomes the new range.
  template <class F>
  __device__ i64 find(i64 begin, i64 end, Weight target, F f) const {
    __shared__ Weight of_piece[most_sample_warps];
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
    while (end - begin > 1) {
      const i64 piece = (end - begin + warps - 1) / warps, from = begin + warp * piece,
                to = from + piece < end ? from + piece : end;
      Weight v = 0;
      each(from, to, threadIdx.x % 32, 32, [&](i64 i, C x) { v += f(i, x); });
      v = over_warp(v, [](Weight x, Weight y) { return x + y; });
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

// The weights of a row's tokens, given its most likely token and a temperature above 0.
template <class S>
struct Draw {
  using C = compute_t<S>;
  double logit, rate;  // logit of the most likely token; 1/temperature
  int bits;
  bool any;  // false if the maximum is infinite or NaN, so no token is drawn by weight

  __device__ Draw(const SampleRows& a, const LogitRow<S>& row, i64 best, double temperature)
      : logit(static_cast<double>(row.at(best))),
        rate(1 / temperature),
        bits(a.bits),
        any(logit - logit == 0) {}
  __device__ Weight operator()(i64, C x) const {
    return sample_weight(static_cast<double>(x), logit, rate, bits);
  }
};

// Returns the most likely token of a row, given the most likely tokens of its pieces. There are few pieces,
// so each warp computes the result.
template <class S>
__device__ Likely<typename LogitRow<S>::Order> best_of_pieces(const SampleRows& a, i64 r) {
  using Order = typename LogitRow<S>::Order;
  Likely<Order> best;
#pragma unroll 1
  for (i64 p = threadIdx.x % 32; p < a.pieces; p += 32) {
    const i64 at = r * a.pieces + p;
    best = Likelier()(best, Likely<Order>{static_cast<Order>(a.orders[at]), a.likeliest[at]});
  }
  return over_warp(best, Likelier());
}

template <class S>
__global__ void __launch_bounds__(piece_threads) find_likeliest(const __grid_constant__ SampleRows a) {
  begin_early();
  const i64 begin = blockIdx.x * logits_of_piece, end = min(begin + logits_of_piece, a.n);
  for (i64 r = blockIdx.y; r < a.rows; r += gridDim.y) {
    const auto best = LogitRow<S>(a, r).best(begin, end);
    if (threadIdx.x > 0) continue;
    a.likeliest[r * a.pieces + blockIdx.x] = static_cast<int>(best.token);
    a.orders[r * a.pieces + blockIdx.x] = best.order;
  }
}

template <class S>
__global__ void __launch_bounds__(piece_threads) add_weights(const __grid_constant__ SampleRows a) {
  begin_early();
  const i64 begin = blockIdx.x * logits_of_piece, end = min(begin + logits_of_piece, a.n);
  for (i64 r = blockIdx.y; r < a.rows; r += gridDim.y) {
    const LogitRow<S> row(a, r);
    const double temperature = a.temperature_of(r);
    const Draw<S> weight(a, row, best_of_pieces<S>(a, r).token, temperature);
    if (!is_drawn(temperature) || !weight.any) continue;
    const Weight sum = row.sum(begin, end, weight);
    if (threadIdx.x == 0) a.weights[r * a.pieces + blockIdx.x] = sum;
  }
}

// The tokens with logits above `least`, and the tokens up to `last` with logits equal to `least`.
template <class Order>
struct Likeliest {
  Order least = 0;
  i64 last = LLONG_MAX;
  __device__ bool has(Order order, i64 i) const { return order > least || (order == least && i <= last); }
};

// Returns the smallest set of most likely tokens with a total `amount` of at least `needed`. Equally likely
// tokens are ordered by index. Finds `least` in digits of two bits, from the highest to the lowest.
template <class S, class F>
__device__ Likeliest<typename LogitRow<S>::Order> likeliest(const LogitRow<S>& row, Weight needed, F amount) {
  using Order = typename LogitRow<S>::Order;
  using C = compute_t<S>;
  Order least = 0;
  for (int shift = static_cast<int>(sizeof(Order)) * 8 - 2; shift >= 0; shift -= 2) {
    Two<Two<Weight>> of_digit{};  // {{-, 1}, {2, 3}}
    row.each(0, row.n, threadIdx.x, blockDim.x, [&](i64 i, C logit) {
      const Order order = order_of(logit);
      const int digit = static_cast<int>(order >> shift & 3);
      if ((order >> shift >> 2) != (least >> shift >> 2) || digit == 0) return;
      const Weight a = amount(i, logit);
      (digit == 1 ? of_digit.a.b : digit == 2 ? of_digit.b.a : of_digit.b.b) += a;
    });
    of_digit = sum_over_block(of_digit);
    const Weight with[4] = {0, of_digit.a.b, of_digit.b.a, of_digit.b.b};
    int digit = 3;
    for (; digit > 0 && with[digit] < needed; --digit) needed -= with[digit];
    least |= static_cast<Order>(digit) << shift;
  }
  return {least, row.find(0, row.n, needed - 1, [&](i64 i, C logit) {
            return order_of(logit) == least ? amount(i, logit) : Weight{0};
          })};
}

template <class S>
__device__ i64 token_of(const SampleRows& a, i64 r, double temperature) {
  using C = compute_t<S>;
  const LogitRow<S> row(a, r);
  const auto best = a.pieces > 0 ? best_of_pieces<S>(a, r) : row.best(0, a.n);
  if (best.order == 0) return -1;  // NaN has the lowest order, so all logits are NaN
  if (!is_drawn(temperature)) return best.token;
  const Draw<S> weight(a, row, best.token, temperature);
  if (!weight.any) return best.token;

  Likeliest<typename LogitRow<S>::Order> kept;
  const auto kept_weight_of = [&](i64 i, C x) -> Weight {
    return kept.has(order_of(x), i) ? weight(i, x) : 0;
  };
  if (a.cut) {
    const i64 k = load_as<i64>(a.top_k.data, a.top_k_type, a.top_k.offset(r));
    const double p = load_as<double>(a.top_p.data, a.top_p_type, a.top_p.offset(r));
    if (k > 0 && k < a.n) kept = likeliest(row, static_cast<Weight>(k), [](i64, C) -> Weight { return 1; });
    // The share of top_p is reached before any token that top_k excludes. `weight` therefore needs no check.
    if (p < 1) kept = likeliest(row, kept_weight(row.sum(0, a.n, kept_weight_of), p), weight);
  }
  const i64 key = 2 * r;
  const auto seed = load_as<i64>(a.keys.data, DType::i64, a.keys.offset(key)),
             k = load_as<i64>(a.keys.data, DType::i64, a.keys.offset(key + 1));
  const Weight fraction = sample_fraction(static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(k));
  if (a.cut || a.pieces == 0)
    return row.find(0, a.n, share_of(row.sum(0, a.n, kept_weight_of), fraction), kept_weight_of);
  const Weight* const weights = a.weights + r * a.pieces;
  Weight all = 0;
  for (int p = 0; p < a.pieces; ++p) all += weights[p];
  Weight target = share_of(all, fraction);
  int p = 0;
  for (; p < a.pieces - 1 && target >= weights[p]; ++p) target -= weights[p];
  const i64 begin = p * logits_of_piece;
  return row.find(begin, min(begin + logits_of_piece, a.n), target, weight);
}

template <class S>
__global__ void __launch_bounds__(32 * most_sample_warps) draw_tokens(const __grid_constant__ SampleRows a) {
  let_next_kernel_begin();
  for (i64 r = blockIdx.x; r < a.rows; r += gridDim.x) {
    if (!a.constant_temperature) wait_for_kernel_before();
    const double temperature = a.temperature_of(r);
    if (a.constant_temperature) wait_for_kernel_before();
    const i64 token = token_of<S>(a, r, temperature);
    if (threadIdx.x == 0) a.out[r] = static_cast<int>(token);
  }
}

int pieces_of(const Call& c) {
  const i64 n = c.in[0].layout.shape[1];
  return n <= logits_of_piece ? 0 : static_cast<int>((n + logits_of_piece - 1) / logits_of_piece);
}

void launch_sample(const Stream& s, const Call& c) {
  const Shape& shape = c.in[0].layout.shape;
  if (shape[0] == 0) return;
  const bool cut = c.in.size() == 5;
  const Arg &top_k = c.in[cut ? 3 : 2], &top_p = c.in[cut ? 4 : 1];
  const int pieces = pieces_of(c);
  auto* const orders = reinterpret_cast<Weight*>(s.workspace);
  Weight* const weights = orders + shape[0] * pieces;
  const SampleRows a{RowLayout(c.in[0], 1),
                     RowLayout(c.in[1], -1),
                     RowLayout(c.in[2], -1),
                     RowLayout(top_k, -1),
                     RowLayout(top_p, -1),
                     c.in[1].dtype,
                     top_k.dtype,
                     top_p.dtype,
                     shape[1],
                     shape[0],
                     cut,
                     sample_bits(static_cast<std::uint64_t>(shape[1])),
                     is_constant(c.in[1], c),
                     reinterpret_cast<int*>(c.out[0].data),
                     pieces,
                     reinterpret_cast<int*>(weights + shape[0] * pieces),
                     orders,
                     weights};
  const dim3 of_pieces(static_cast<unsigned>(pieces), static_cast<unsigned>(std::min<i64>(a.rows, 1 << 15)));
  with_float(c.in[0].dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    if (pieces > 0) {
      launch_early(s, {of_pieces, piece_threads}, find_likeliest<S>, a);
      if (!cut) launch_early(s, {of_pieces, piece_threads}, add_weights<S>, a);
    }
    launch_early(s, {blocks_for(a.rows, 1), a.n <= logits_of_piece ? 128u : 32 * most_sample_warps},
                 draw_tokens<S>, a);
  });
}

std::size_t workspace_of_sample(const Call& c) {
  return static_cast<std::size_t>(c.in[0].layout.shape[0] * pieces_of(c)) *
         (2 * sizeof(Weight) + sizeof(int));
}

}  // namespace

extern const Kernel sample_kernel{&launch_sample, &workspace_of_sample};

}  // namespace tg::cuda
