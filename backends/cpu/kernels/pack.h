// Copies matrix blocks into the order in which the micro-kernel reads them, and converts storage types to the
// compute type. The copies are rows, transposed rows, packed A chunks or packed B panels, in the layouts of
// micro.h.
#pragma once

#include <utility>

#include "backends/cpu/kernels/micro.h"

namespace tg::cpu::TG_ISA {

// Stage `S` of a transposition exchanges bit S of the row number with bit S of the lane number, for rows r
// and r + S.
template <int S, class V, int... L>
TG_INLINE void exchange(V& low, V& high, std::integer_sequence<int, L...>) {
  constexpr int W = lanes<V>;
  const V a = low, b = high;
  low = __builtin_shufflevector(a, b, ((L & S) == 0 ? L : W + L - S)...);
  high = __builtin_shufflevector(a, b, ((L & S) == 0 ? L + S : W + L)...);
}
template <int S, class V>
TG_INLINE void transpose_stages(V* v) {
  constexpr int W = lanes<V>;
  if constexpr (S < W) {
#pragma GCC unroll 16
    for (int r = 0; r < W; ++r)
      if ((r & S) == 0) exchange<S>(v[r], v[r + S], std::make_integer_sequence<int, W>());
    transpose_stages<2 * S>(v);
  }
}

// Transposes a W×W block of v, one vector per row, in registers.
template <class V>
TG_INLINE void transpose_block(V* v) {
  transpose_stages<1>(v);
}

// to[r·ld_to + c] = from[r·ld_from + c] for r < rows, c < columns. Columns up to `padded` become 0.
template <class S>
void copy_rows(i64 rows, i64 columns, i64 padded, const S* from, i64 ld_from, compute_t<S>* to, i64 ld_to) {
  constexpr int W = lanes<vector_t<S>>;
  for (i64 r = 0; r < rows; ++r, from += ld_from, to += ld_to) {
    i64 c = 0;
    for (; c + W <= columns; c += W) store(to + c, load(from + c));
    if (const int rest = static_cast<int>(columns - c); rest > 0)
      store_partial(to + c, load_partial(from + c, rest), rest);
    for (c = columns; c < padded; ++c) to[c] = 0;
  }
}

// to[c·ld_to + r] = from[r·ld_from + c] for r < rows, c < columns. r up to the next multiple of the vector
// becomes 0.
template <class S>
void copy_transposed(i64 rows, i64 columns, const S* from, i64 ld_from, compute_t<S>* to, i64 ld_to) {
  using V = vector_t<S>;
  constexpr int W = lanes<V>;
  for (i64 r = 0; r < rows; r += W) {
    const int high = static_cast<int>(rows - r < W ? rows - r : W);
    for (i64 c = 0; c < columns; c += W) {
      const int across = static_cast<int>(columns - c < W ? columns - c : W);
      const S* p = from + r * ld_from + c;
      V block[W] = {};
      if (high == W && across == W) {
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) block[i] = load(p + i * ld_from);
      } else {
        for (int i = 0; i < high; ++i) block[i] = load_partial(p + i * ld_from, across);
      }
      transpose_block(block);
      for (int i = 0; i < across; ++i) store(to + (c + i) * ld_to + r, block[i]);
    }
  }
}

// Packs A(i, p) = from[i·row + p·col], i < m, p < k, into chunks. `to` has room for m·k elements.
template <class S>
void pack_left(i64 m, i64 k, const S* from, i64 row, i64 col, compute_t<S>* to) {
  using T = compute_t<S>;
  using V = vector_t<S>;
  constexpr int W = lanes<V>;
  const RowChunks<T> chunks(m);
  // All rows of a chunk at one p fit in a vector. If there is room, the code stores a whole vector, because
  // masked stores are slow on AVX2. The next p of the chunk then overwrite the excess elements.
  constexpr bool spills = Tile<T>::rows <= W;
  if (row == 1) {  // rows are contiguous: alternate between chunks after a few p
    constexpr i64 few = 8;
    for (i64 p0 = 0; p0 < k; p0 += few)
      for (i64 chunk = 0; chunk < chunks.count; ++chunk) {
        const i64 i0 = chunks.start(chunk);
        const int rows = static_cast<int>(chunks.start(chunk + 1) - i0);
        for (i64 p = p0; p < p0 + few && p < k; ++p) {
          const S* a = from + p * col + i0;
          T* out = to + i0 * k + p * rows;
          __builtin_prefetch(a + 16 * col);  // the hardware prefetcher does not detect these strides
          if (spills && (k - p) * rows >= W && i0 + W <= m) {
            store(out, load(a));
            continue;
          }
          for (int r = 0; r < rows; r += W) {
            const int high = rows - r < W ? rows - r : W;
            store_partial(out + r, load_partial(a + r, high), high);
          }
        }
      }
    return;
  }
  for (i64 chunk = 0; chunk < chunks.count; ++chunk) {
    const i64 i0 = chunks.start(chunk);
    const int rows = static_cast<int>(chunks.start(chunk + 1) - i0);
    const S* a = from + i0 * row;
    T* out = to + i0 * k;  // [k][rows]
    if (col == 1) {
      for (int r = 0; r < rows; r += W) {
        const int high = rows - r < W ? rows - r : W;
        for (i64 p = 0; p < k; p += W) {
          const int across = static_cast<int>(k - p < W ? k - p : W);
          V block[W] = {};
          if (across == W) {
#pragma GCC unroll 16
            for (int i = 0; i < W; ++i)
              if (i < high) block[i] = load(a + (r + i) * row + p);
          } else {
            for (int i = 0; i < high; ++i) block[i] = load_partial(a + (r + i) * row + p, across);
          }
          transpose_block(block);
          for (int i = 0; i < across; ++i)
            if (spills && (k - p - i) * rows >= W)
              store(out + (p + i) * rows, block[i]);
            else
              store_partial(out + (p + i) * rows + r, block[i], high);
        }
      }
    } else {
      for (i64 p = 0; p < k; ++p)
        for (int r = 0; r < rows; ++r) out[p * rows + r] = static_cast<T>(a[r * row + p * col]);
    }
  }
}

// Packs B(p, j) = from[p·row + j·col], p < k, j < n, into panels. `to` has room for k·n elements, with n
// rounded up to a multiple of Tile::columns.
template <class S>
void pack_right(i64 k, i64 n, const S* from, i64 row, i64 col, compute_t<S>* to) {
  using T = compute_t<S>;
  constexpr int N = Tile<T>::columns;
  for (i64 j = 0; j < n; j += N, to += k * N) {
    const i64 columns = n - j < N ? n - j : N;
    const S* b = from + j * col;
    if (col == 1) {
      copy_rows(k, columns, N, b, row, to, N);
    } else if (row == 1) {
      copy_transposed(columns, k, b, col, to, N);
      for (i64 c = (columns + N / 2 - 1) / (N / 2) * (N / 2); c < N; ++c)
        for (i64 p = 0; p < k; ++p) to[p * N + c] = 0;
    } else {
      for (i64 p = 0; p < k; ++p)
        for (i64 c = 0; c < N; ++c) to[p * N + c] = c < columns ? static_cast<T>(b[p * row + c * col]) : T{0};
    }
  }
}

// ---- pairs of bf16 along k, each in the space of an f32; if k is odd, the last pair contains a 0 ----

TG_INLINE float pair_of(const bfloat16* first, const bfloat16* second) {
  const std::uint32_t bits = first->bits | (second ? static_cast<std::uint32_t>(second->bits) << 16 : 0u);
  return __builtin_bit_cast(float, bits);
}
TG_INLINE F32 pairs_of(const bfloat16* first, const bfloat16* second) {  // one vector of each, interleaved
  const U32 high = second ? (U32)load(second) : U32{};
  return (F32)((U32)load(first) >> 16 | high);
}

// Packs A(i, p), i < m, p < k, into chunks of pairs: m·⌈k/2⌉ floats.
inline void pack_left_pairs(i64 m, i64 k, const bfloat16* from, i64 row, i64 col, float* to) {
  const i64 pairs = (k + 1) / 2;
  if (col == 1 && row % 2 == 0 && k % 2 == 0)
    return pack_left(m, pairs, reinterpret_cast<const float*>(from), row / 2, 1, to);
  constexpr int W = lanes<F32>;
  const RowChunks<float> chunks(m);
  for (i64 p = 0; p < pairs; ++p) {
    const bfloat16* first = from + 2 * p * col;
    const bool whole = 2 * p + 1 < k;
    for (i64 chunk = 0; chunk < chunks.count; ++chunk) {
      const i64 i0 = chunks.start(chunk), rows = chunks.start(chunk + 1) - i0;
      float* out = to + i0 * pairs + p * rows;
      i64 r = 0;
      if (row == 1 && i0 + W <= m && rows <= W) {
        store_partial(out, pairs_of(first + i0, whole ? first + col + i0 : nullptr), static_cast<int>(rows));
        r = rows;
      }
      for (; r < rows; ++r) {
        const bfloat16* at = first + (i0 + r) * row;
        out[r] = pair_of(at, whole ? at + col : nullptr);
      }
    }
  }
}

// Packs B(p, j), p < k, j < n, into panels of pairs: ⌈k/2⌉·n floats, with n rounded up to a multiple of
// Tile::columns.
inline void pack_right_pairs(i64 k, i64 n, const bfloat16* from, i64 row, i64 col, float* to) {
  const i64 pairs = (k + 1) / 2;
  if (row == 1 && col % 2 == 0 && k % 2 == 0)
    return pack_right(pairs, n, reinterpret_cast<const float*>(from), 1, col / 2, to);
  constexpr int W = lanes<F32>, N = Tile<float>::columns;
  for (i64 j = 0; j < n; j += N, to += pairs * N) {
    const i64 columns = n - j < N ? n - j : N;
    for (i64 p = 0; p < pairs; ++p) {
      const bfloat16* first = from + 2 * p * row + j * col;
      const bool whole = 2 * p + 1 < k;
      float* out = to + p * N;
      i64 c = 0;
      if (col == 1)
        for (; c + W <= columns; c += W)
          store(out + c, pairs_of(first + c, whole ? first + row + c : nullptr));
      for (; c < columns; ++c) out[c] = pair_of(first + c * col, whole ? first + c * col + row : nullptr);
      for (; c < N; ++c) out[c] = 0;
    }
  }
}

// Calls f with a null pointer to the storage type of a float dtype whose compute type is T.
template <class T, class F>
TG_INLINE void with_storage(DType t, F&& f) {
  if constexpr (sizeof(T) == 8) {
    f(static_cast<const double*>(nullptr));
  } else {
    switch (t) {
      case DType::bf16:
        return f(static_cast<const bfloat16*>(nullptr));
      case DType::f16:
        return f(static_cast<const float16*>(nullptr));
      default:
        return f(static_cast<const float*>(nullptr));
    }
  }
}

}  // namespace tg::cpu::TG_ISA
