#include <cstdio>

#include "backends/cpu/kernels/gemm_parts.h"

namespace tg::cpu::TG_ISA {
namespace {

constexpr int most_rows = TG_VECTOR_BYTES == 64 ? 8 : 4;  // rows whose sums stay in registers
constexpr i64 most_columns = piece_size(1024, 64);        // columns of a part; its sums stay in L1 and L2
// Rows of B are prefetched this many rows ahead, because the hardware prefetcher does not detect them.
constexpr i64 ahead = 12;

// Number of vectors that keeps enough sums in flight.
constexpr int vectors_at_once(int rows) {
  constexpr bool many = TG_VECTOR_BYTES == 64;  // registers
  return rows <= (many ? 3 : 1) ? 8 : rows <= (many ? 6 : 2) ? 4 : 2;
}

// As Numbers and Pairs, but read from rows of B in place.
template <class S>
struct HalfNumbers : Numbers<S> {
  static TG_INLINE F32 read(const S* p, i64, bool) { return load(p); }
  static constexpr auto pack_a = pack_left<S>, pack_b = pack_right<S>;
  static constexpr auto multiply = TG_ISA::multiply<float>;
};
struct HalfPairs : Pairs {
  static TG_INLINE F32 read(const bfloat16* p, i64 row, bool second) {
    return pairs_of(p, second ? p + row : nullptr);
  }
  static constexpr auto pack_a = pack_left_pairs, pack_b = pack_right_pairs;
  static constexpr auto multiply = multiply_pairs;
};

// c[M × N vectors] = A·B, plus c if `adds`. A is packed: [k / depth][M].
template <class E, int M, int N>
void row_block(i64 k, const float* a, const typename E::Storage* b, i64 row, float* c, i64 ldc, bool adds) {
  constexpr int W = lanes<F32>;
  F32 sum[M][N] = {};
  const auto step = [&](bool whole) __attribute__((always_inline)) {
    F32 av[M];
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) av[i] = E::broadcast(a + i);
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) {
      __builtin_prefetch(b + ahead * row + j * W);
      if (E::depth == 2) __builtin_prefetch(b + (ahead + 1) * row + j * W);
      const F32 bv = E::read(b + j * W, row, whole);
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) sum[i][j] = E::add_product(av[i], bv, sum[i][j]);
    }
    a += M, b += E::depth * row;
  };
  for (i64 p = 0; p + E::depth <= k; p += E::depth) step(true);
  if (k % E::depth != 0) step(false);
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) {
      float* to = c + i * ldc + j * W;
      store(to, adds ? load(to) + sum[i][j] : sum[i][j]);
    }
}

// Computes as many whole pairs of vectors of columns as possible. Returns the number of computed columns.
template <class E, int M>
i64 row_blocks(i64 k, const float* a, const typename E::Storage* b, i64 row, i64 n, float* c, i64 ldc,
               bool adds) {
  constexpr int W = lanes<F32>, many = vectors_at_once(M);
  i64 j = 0;
  for (; j + many * W <= n; j += many * W) row_block<E, M, many>(k, a, b + j, row, c + j, ldc, adds);
  for (; j + 2 * W <= n; j += 2 * W) row_block<E, M, 2>(k, a, b + j, row, c + j, ldc, adds);
  return j;
}

template <class E, int... i>
constexpr auto blocks_of_rows(i64 rows, std::integer_sequence<int, i...>) {
  constexpr decltype(&row_blocks<E, 1>) of[] = {row_blocks<E, i + 1>...};
  return of[rows - 1];
}

struct RowsPlan {
  i64 batches, spans, span;  // columns of a part, a multiple of the panel
  i64 k;                     // elements along k, or pairs; the last pair may be incomplete
  i64 chunks;                // number of chunks of k, as in the packed GEMM

  RowsPlan(const Gemm& g, int threads)
      : batches(batches_of(g)), k(is_pairs(g) ? ceil_div(g.k, 2) : g.k), chunks(k_chunks(k)) {
    constexpr i64 N = Tile<float>::columns;
    const i64 enough = threads == 1 ? 1 : 4 * threads, panels = ceil_div(g.n, N),
              parts = at_least(ceil_div(panels * N, most_columns), ceil_div(enough, batches));
    span = at_least(1, panels / parts) * N;
    spans = ceil_div(panels * N, span);
  }
  i64 start(i64 chunk) const { return chunk * k / chunks; }
  i64 longest() const { return ceil_div(k, chunks); }
};

template <class E>
void run(const Gemm& g, const RowsPlan& plan, Worker& w) {
  using S = typename E::Storage;
  constexpr i64 N = Tile<float>::columns;
  float* const a = reinterpret_cast<float*>(w.scratch);
  float* const own = a + aligned(g.m * plan.longest());
  float* const panel = own + aligned(g.m * plan.span);
  w.each(plan.batches * plan.spans, [&](i64 part) {
    const i64 item = part / plan.spans, j0 = part % plan.spans * plan.span, n = at_most(g.n - j0, plan.span);
    for (i64 q = 0; q < plan.chunks; ++q) {
      const i64 p = plan.start(q) * E::depth, k = at_most(g.k, plan.start(q + 1) * E::depth) - p;
      E::pack_a(g.m, k, element<float, S>(g, g.a, item, 0, p), g.a.row, g.a.col, a);
      const S* const b = element<float, S>(g, g.b, item, p, j0);
      const i64 done = blocks_of_rows<E>(g.m, std::make_integer_sequence<int, most_rows>())(
          k, a, b, g.b.row, n, own, plan.span, q > 0);
      if (done == n) continue;
      E::pack_b(k, n - done, b + done, g.b.row, g.b.col, panel);
      E::multiply(g.m, n - done, ceil_div(k, E::depth), {a, 0, 0, Form::packed}, {panel, 0, Form::packed},
                  own + done, plan.span, q > 0 ? own + done : nullptr, plan.span);
    }
    write_out(g, item, 0, g.m, j0, j0 + n, own, plan.span);
  });
  static_assert(N == 2 * lanes<F32>);
}

}  // namespace

bool is_rows(const Gemm& g) {
  return size_of(g.type) == 2 && g.b.col == 1 && g.m <= most_rows && g.k > 0;
}

constinit const GemmCase gemm_rows{
    [](const Gemm& g, int threads) {
      const RowsPlan plan(g, threads);
      const i64 floats = aligned(g.m * plan.longest()) + aligned(g.m * plan.span) +
                         aligned(Tile<float>::columns * plan.longest());
      return Scratch{static_cast<std::size_t>(floats) * sizeof(float), 0};
    },
    [](const Gemm& g, Worker& w) {
      const RowsPlan plan(g, w.threads);
      if constexpr (has_pairs)
        if (is_pairs(g)) return run<HalfPairs>(g, plan, w);
      g.type == DType::bf16 ? run<HalfNumbers<bfloat16>>(g, plan, w) : run<HalfNumbers<float16>>(g, plan, w);
    },
    [](const Gemm& g, int threads, char* text, std::size_t size) {
      const RowsPlan plan(g, threads);
      std::snprintf(text, size, "16-bit rows of b in place, rows: %lld, parts: %lld",
                    static_cast<long long>(g.m), static_cast<long long>(plan.batches * plan.spans));
    }};

}  // namespace tg::cpu::TG_ISA
