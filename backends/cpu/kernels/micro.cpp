#include "backends/cpu/kernels/micro.h"

namespace tg::cpu::TG_ISA {
namespace {

template <class T>
using Kernel = void (*)(i64 k, const T* a, i64 a_row, i64 a_col, const T* b, i64 ldb, T* c, i64 ldc,
                        const T* d, i64 ldd, int tail, const char* next, i64 step);

// Computes one tile of M rows and N vectors. The last vector has `tail` columns. If Partial is true, the code
// must not read B beyond these columns.
template <class E, int M, int N, bool Partial, class T = typename E::T>
void kernel(i64 k, const T* a, i64 a_row, i64 a_col, const T* b, i64 ldb, T* c, i64 ldc, const T* d, i64 ldd,
            int tail, const char* next, i64 step) {
  using V = typename E::V;
  constexpr int W = lanes<V>;
  V sum[M][N] = {};
  const T* row[(M + 2) / 3];  // every third row has a pointer; two more follow at one and two strides
#pragma GCC unroll 8
  for (int i = 0; i < (M + 2) / 3; ++i) row[i] = a + 3 * i * a_row;
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
    __builtin_prefetch(c + i * ldc, 1);
    if (N > 1) __builtin_prefetch(c + i * ldc + W, 1);
  }
  [[maybe_unused]] const i64 a_ahead = a_row == 1 ? 12 * a_col : 0, b_ahead = step == 0 ? 12 * ldb : 0;
  for (i64 p = 0; p < k; ++p, b += ldb, next += step) {
    __builtin_prefetch(next, 0, 2);
    if constexpr (asks_ahead) {
      __builtin_prefetch(row[0] + a_ahead);
      if (M > 2) __builtin_prefetch(row[0] + a_ahead + M - 1);
      __builtin_prefetch(b + b_ahead);
      if (N > 1) __builtin_prefetch(b + b_ahead + W);
    }
    V bv[N];
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j)
      bv[j] = Partial && j == N - 1 ? load_partial(b + j * W, tail) : load(b + j * W);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      const V av = E::broadcast(row[i / 3] + (i % 3) * a_row);
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) sum[i][j] = E::add_product(av, bv[j], sum[i][j]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < (M + 2) / 3; ++i) row[i] += a_col;
  }
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) {
      T* to = c + i * ldc + j * W;
      if (j == N - 1 && tail < W) {
        store_partial(to, d ? load_partial(d + i * ldd + j * W, tail) + sum[i][j] : sum[i][j], tail);
      } else {
        store(to, d ? load(d + i * ldd + j * W) + sum[i][j] : sum[i][j]);
      }
    }
  }
}

// Returns the number of vectors of columns. With few rows, more columns fit in registers, so that enough
// independent sums are in flight.
constexpr int wide(int rows) {
  constexpr bool many = TG_VECTOR_BYTES == 64;  // registers
  return rows <= (many ? 3 : 1) ? 8 : rows <= (many ? 6 : 3) ? 4 : 2;
}

template <class E, class Rows>
struct Kernels;
template <class E, int... i>
struct Kernels<E, std::integer_sequence<int, i...>> {  // [rows - 1]; pairs are packed
  using Of = Kernel<typename E::T>;
  static constexpr bool direct = E::depth == 1;
  static constexpr Of two[] = {kernel<E, i + 1, 2, false>...},
                      two_partial[] = {kernel<E, i + 1, 2, direct>...};
  static constexpr Of one[] = {kernel<E, i + 1, 1, false>...},
                      one_partial[] = {kernel<E, i + 1, 1, direct>...};
  static constexpr Of many[] = {kernel < E, i + 1, direct ? wide(i + 1) : 2, false > ...};
};

template <class E, class T = typename E::T>
void run_tiles(i64 m, i64 n, i64 k, Left<T> a, Right<T> b, T* c, i64 ldc, const T* d, i64 ldd) {
  if (m <= 0) return;
  using K = Kernels<E, std::make_integer_sequence<int, Tile<T>::rows>>;
  constexpr int W = Tile<T>::width;
  const RowChunks<T> chunks(m);
  const bool packed_a = a.form == Form::packed, packed_b = b.form == Form::packed;
  const bool few = chunks.count == 1 && !packed_b;  // rows
  const int span = (few ? wide(static_cast<int>(m)) : 2) * W;
  for (i64 j = 0; j < n;) {
    const i64 left = n - j;
    const bool whole = left >= span, two = !whole && left > W;
    const i64 columns = whole ? span : left < 2 * W ? left : 2 * W;
    const int tail = static_cast<int>(whole || columns == 2 * W ? W : two ? columns - W : columns);
    const bool partial = tail < W && b.form == Form::direct;
    const Kernel<T>* kernels = whole && few   ? K::many
                               : whole || two ? (partial ? K::two_partial : K::two)
                                              : (partial ? K::one_partial : K::one);
    const T* bj = packed_b ? b.data + j * k : b.data + j;
    const i64 ldb = packed_b ? 2 * W : b.ld;
    // While the chunks of A use this panel of B, the next panel is prefetched from the outer caches.
    const i64 panel = 2 * W * static_cast<i64>(sizeof(T));
    const i64 step = packed_b && j + columns < n ? panel / chunks.count : 0;
    const char* next = reinterpret_cast<const char*>(step ? bj + 2 * W * k : bj);
    for (i64 chunk = 0; chunk < chunks.count; ++chunk) {
      const i64 i = chunks.start(chunk), rows = chunks.start(chunk + 1) - i;
      kernels[rows - 1](k, packed_a ? a.data + i * k : a.data + i * a.row, packed_a ? 1 : a.row,
                        packed_a ? rows : a.col, bj, ldb, c + i * ldc + j, ldc, d ? d + i * ldd + j : nullptr,
                        ldd, tail, next + chunk * step * k, step);
    }
    j += columns;
  }
}

}  // namespace

template <class T>
void multiply(i64 m, i64 n, i64 k, Left<T> a, Right<T> b, T* c, i64 ldc, const T* d, i64 ldd) {
  run_tiles<Numbers<T>>(m, n, k, a, b, c, ldc, d, ldd);
}

#if TG_VECTOR_BYTES == 64
void multiply_pairs(i64 m, i64 n, i64 k, Left<float> a, Right<float> b, float* c, i64 ldc, const float* d,
                    i64 ldd) {
  run_tiles<Pairs>(m, n, k, a, b, c, ldc, d, ldd);
}
#endif

template void multiply<float>(i64, i64, i64, Left<float>, Right<float>, float*, i64, const float*, i64);
template void multiply<double>(i64, i64, i64, Left<double>, Right<double>, double*, i64, const double*, i64);

}  // namespace tg::cpu::TG_ISA
