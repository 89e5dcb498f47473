// Blocks of C are handed out to threads. A block runs through k in fixed chunks; for each chunk A is packed
// (or read in place) once and stays in L2 while panels of B pass through L1. B is packed once by all threads
// together where the product is large, else by each thread for its own columns, which needs no barrier.
#include "backends/cpu/kernels/gemm.h"

#include "backends/cpu/kernels/pack.h"

namespace tg::cpu::TG_ISA {
namespace {

i64 ceil_div(i64 a, i64 b) {
  return (a + b - 1) / b;
}
i64 at_most(i64 a, i64 b) {
  return a < b ? a : b;
}
i64 at_least(i64 a, i64 b) {
  return a > b ? a : b;
}

// Everything that follows from shapes, strides, types and the number of threads.
struct Plan {
  i64 batches;
  bool pairs;  // of bf16 along k, in the place of an f32
  i64 k;       // elements, or pairs, along k
  bool pack_a, pack_b, shared_b, own_c;
  i64 k_chunks;                            // chunk q is [q·k/k_chunks, (q+1)·k/k_chunks)
  i64 pass;                                // columns whose B is packed at a time, a multiple of the panel
  i64 row_blocks;                          // of m
  i64 column_blocks;                       // of a pass
  i64 a_elements, b_elements, c_elements;  // scratch, per thread (b: or shared)

  i64 k_start(i64 q) const { return q * k / k_chunks; }
};

constexpr i64 k_block = 384;    // A chunk of 14 rows: 21 KiB of L1; panel of B: 48 KiB, through L1 from L2
constexpr i64 row_block = 112;  // A block: 112·384 f32 = 168 KiB of L2
constexpr i64 column_block = 1024;   // C block: 112·1024 f32 = 448 KiB of L2, for all chunks of k
constexpr i64 pass_bytes = 8 << 20;  // packed B of one pass

bool is_empty(const Gemm& g) {
  for (int i = 0; i < g.batch_rank; ++i)
    if (g.batch[i] == 0) return true;
  return g.m == 0 || g.n == 0;
}

template <class E>
void swap(E& a, E& b) {
  const E t = a;
  a = b;
  b = t;
}

// C^T = B^T·A^T.
Gemm swapped(Gemm g) {
  swap(g.m, g.n);
  swap(g.a, g.b);
  for (Gemm::Operand* x : {&g.a, &g.b, &g.c, &g.d}) swap(x->row, x->col);
  return g;
}

// C with unit row stride is C^T with unit column stride.
Gemm normalised(const Gemm& g) {
  return g.c.col == 1 || g.c.row != 1 ? g : swapped(g);
}

template <class T>
Plan plan_for(const Gemm& g, int threads) {
  constexpr i64 N = Tile<T>::columns, M = Tile<T>::rows;
  Plan p;
  p.batches = 1;
  for (int i = 0; i < g.batch_rank; ++i) p.batches *= g.batch[i];
  const bool native = size_of(g.type) == sizeof(T);
  p.own_c = g.c.col != 1 || size_of(g.out_type) != sizeof(T) || (g.d.data && g.d.col != 1);
#if defined(TG_BF16_PAIRS)
  p.pairs = g.bf16_dot && g.type == DType::bf16;
#else
  p.pairs = false;
#endif
  p.k = p.pairs ? ceil_div(g.k, 2) : g.k;
  p.k_chunks = at_least(1, ceil_div(p.k, k_block));
  const i64 k_longest = ceil_div(p.k, p.k_chunks);

  // In place, rows of B must not fall into the same sets of L1; packing pays when many rows of C share it.
  const bool b_collides = g.b.row * static_cast<i64>(sizeof(T)) % 4096 == 0;
  p.pack_b = !native || g.b.col != 1 || g.m > (b_collides ? 4 : 16) * M;
  const double flops = 2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
  p.shared_b = p.pack_b && p.batches < 2 * threads && flops > 6e7;
  p.pass = at_least(N, pass_bytes / static_cast<i64>(sizeof(T)) / at_least(1, p.k) / N * N);
  p.pass = at_most(p.pass, ceil_div(g.n, N) * N);
  p.row_blocks = at_least(1, ceil_div(g.m, p.shared_b ? row_block : 8 * row_block));
  p.column_blocks = 1;
  const i64 wanted = threads == 1 ? 1 : 4 * threads;  // blocks, for balance
  if (p.shared_b) {
    if (p.row_blocks < wanted)
      p.row_blocks = at_most(ceil_div(p.row_blocks, threads) * threads, ceil_div(g.m, 2 * M));
    if (p.row_blocks < threads) p.column_blocks = at_most(ceil_div(wanted, p.row_blocks), p.pass / N);
    p.column_blocks = at_least(p.column_blocks, ceil_div(p.pass, column_block));
  } else if (p.batches * p.row_blocks * ceil_div(g.n, p.pass) < wanted) {
    const i64 per = ceil_div(wanted, p.batches * p.row_blocks * ceil_div(g.n, p.pass));
    p.column_blocks = at_most(per, p.pass / N);
    if (p.column_blocks < per)
      p.row_blocks = at_most(p.row_blocks * ceil_div(per, p.column_blocks), ceil_div(g.m, 2 * M));
  }
  p.row_blocks = at_least(1, p.row_blocks);
  const i64 rows = ceil_div(g.m, p.row_blocks),
            columns = at_most(p.pass, (ceil_div(p.pass / N, p.column_blocks)) * N);
  // Each block packs its rows of A anew: that pays for many columns, or few whose rows of A would collide.
  const bool rows_collide = g.a.col == 1 && g.a.row * static_cast<i64>(sizeof(T)) % 2048 == 0;
  p.pack_a =
      !native || (g.a.col != 1 && g.a.row != 1) || (columns > 4 * N && (rows_collide || columns >= 512));
  p.a_elements = p.pack_a ? rows * k_longest : 0;
  p.b_elements = !p.pack_b ? 0 : (p.shared_b ? p.pass : columns) * p.k;
  p.c_elements = p.own_c ? rows * columns : 0;
  return p;
}

i64 aligned(i64 bytes) {
  return (bytes + 63) / 64 * 64;
}

// Offset of a batch item in each operand.
i64 batch_offset(const Gemm& g, const Gemm::Operand& x, i64 item) {
  i64 offset = 0;
  for (int i = g.batch_rank - 1; i >= 0; --i) {
    offset += item % g.batch[i] * x.batch_strides[i];
    item /= g.batch[i];
  }
  return offset;
}

template <class T, class S>
const S* element(const Gemm& g, const Gemm::Operand& x, i64 item, i64 i, i64 j) {
  return static_cast<const S*>(x.data) + batch_offset(g, x, item) + i * x.row + j * x.col;
}

// A[i0:i1, k0:k1] into chunks, B[k0:k1, j0:j1] into panels; k0 and k1 as Plan::k counts.
template <class T>
void pack_a(const Gemm& g, const Plan& p, i64 item, i64 i0, i64 i1, i64 k0, i64 k1, T* to) {
#if defined(TG_BF16_PAIRS)
  if constexpr (sizeof(T) == 4)
    if (p.pairs)
      return pack_left_pairs(i1 - i0, at_most(2 * k1, g.k) - 2 * k0,
                             element<T, bfloat16>(g, g.a, item, i0, 2 * k0), g.a.row, g.a.col, to);
#endif
  (void)p;
  with_storage<T>(g.type, [&](auto* tag) {
    using S = std::remove_cv_t<std::remove_pointer_t<decltype(tag)>>;
    pack_left(i1 - i0, k1 - k0, element<T, S>(g, g.a, item, i0, k0), g.a.row, g.a.col, to);
  });
}
template <class T>
void pack_b(const Gemm& g, const Plan& p, i64 item, i64 k0, i64 k1, i64 j0, i64 j1, T* to) {
#if defined(TG_BF16_PAIRS)
  if constexpr (sizeof(T) == 4)
    if (p.pairs)
      return pack_right_pairs(at_most(2 * k1, g.k) - 2 * k0, j1 - j0,
                              element<T, bfloat16>(g, g.b, item, 2 * k0, j0), g.b.row, g.b.col, to);
#endif
  (void)p;
  with_storage<T>(g.type, [&](auto* tag) {
    using S = std::remove_cv_t<std::remove_pointer_t<decltype(tag)>>;
    pack_right(k1 - k0, j1 - j0, element<T, S>(g, g.b, item, k0, j0), g.b.row, g.b.col, to);
  });
}

// C[i0:i1, j0:j1] = own + D, rounded to the storage type.
template <class T>
void write_out(const Gemm& g, i64 item, i64 i0, i64 i1, i64 j0, i64 j1, const T* own, i64 ld) {
  with_storage<T>(g.out_type, [&](auto* tag) {
    using S = std::remove_cv_t<std::remove_pointer_t<decltype(tag)>>;
    constexpr int W = lanes<vector_t<S>>;
    for (i64 i = i0; i < i1; ++i, own += ld) {
      S* c = const_cast<S*>(element<T, S>(g, g.c, item, i, j0));
      const S* d = g.d.data ? element<T, S>(g, g.d, item, i, j0) : nullptr;
      i64 j = 0;
      if (g.c.col == 1 && (!d || g.d.col == 1)) {
        for (; j + W <= j1 - j0; j += W) store(c + j, d ? load(own + j) + load(d + j) : load(own + j));
      }
      for (; j < j1 - j0; ++j) {
        const T sum = d ? own[j] + static_cast<T>(d[j * g.d.col]) : own[j];
        c[j * g.c.col] = static_cast<S>(sum);
      }
    }
  });
}

// The block C[i0:i1, j0:j1]. packed: B from column j0 on, chunk by chunk of k, each `columns` wide; or null.
template <class T>
void block(const Gemm& g, const Plan& p, i64 item, i64 i0, i64 i1, i64 j0, i64 j1, const T* packed,
           i64 columns, i64 skip, T* scratch_a, T* own) {
  const i64 m = i1 - i0, n = j1 - j0, own_ld = ceil_div(n, Tile<T>::columns) * Tile<T>::columns;
  T* c = own;
  i64 ldc = own_ld;
  const T* d = nullptr;
  i64 ldd = 0;
  if (!p.own_c) {
    c = const_cast<T*>(element<T, T>(g, g.c, item, i0, j0));
    ldc = g.c.row;
    if (g.d.data) d = element<T, T>(g, g.d, item, i0, j0), ldd = g.d.row;
  }
  for (i64 q = 0; q < p.k_chunks; ++q) {
    const i64 k0 = p.k_start(q), k1 = p.k_start(q + 1), k = k1 - k0;
    Left<T> a{scratch_a, 0, 0, Form::packed};
    if (!p.pack_a) {
      a = {element<T, T>(g, g.a, item, i0, k0), g.a.row, g.a.col};
    } else {
      pack_a(g, p, item, i0, i1, k0, k1, scratch_a);
    }
    Right<T> b{nullptr, 0, Form::packed};
    if (packed) {
      b.data = packed + k0 * columns + skip * k;
    } else {
      b = {element<T, T>(g, g.b, item, k0, j0), g.b.row};
    }
#if defined(TG_BF16_PAIRS)
    if constexpr (sizeof(T) == 4) {
      if (p.pairs) {
        multiply_pairs(m, n, k, a, b, c, ldc, d, ldd);
      } else {
        multiply(m, n, k, a, b, c, ldc, d, ldd);
      }
    } else
#endif
      multiply(m, n, k, a, b, c, ldc, d, ldd);
    d = c;
    ldd = ldc;
  }
  if (p.own_c) write_out(g, item, i0, i1, j0, j1, own, own_ld);
}

template <class T>
void run(const Gemm& g, Worker& w) {
  constexpr i64 N = Tile<T>::columns;
  if (is_empty(g)) return;
  const Plan p = plan_for<T>(g, w.threads);
  T* const a = reinterpret_cast<T*>(w.scratch);
  T* const own = a + aligned(p.a_elements);
  T* const own_b = own + aligned(p.c_elements);
  const i64 passes = ceil_div(g.n, p.pass);
  const auto columns_of = [&](i64 start, i64 panels, i64 i) {
    return at_most(g.n, start + panels * i / p.column_blocks * N);
  };

  if (!p.shared_b) {
    const i64 blocks = p.column_blocks * p.row_blocks;
    w.each(p.batches * passes * blocks, [&](i64 part) {
      const i64 item = part / (passes * blocks), pass = part / blocks % passes;
      const i64 j = part % blocks / p.row_blocks, i = part % p.row_blocks;
      const i64 start = pass * p.pass, panels = at_most(p.pass / N, ceil_div(g.n - start, N));
      const i64 j0 = columns_of(start, panels, j), j1 = columns_of(start, panels, j + 1);
      if (j0 == j1) return;
      const i64 columns = ceil_div(j1 - j0, N) * N;
      if (p.pack_b)
        for (i64 q = 0; q < p.k_chunks; ++q)
          pack_b<T>(g, p, item, p.k_start(q), p.k_start(q + 1), j0, j1, own_b + p.k_start(q) * columns);
      block<T>(g, p, item, i * g.m / p.row_blocks, (i + 1) * g.m / p.row_blocks, j0, j1,
               p.pack_b ? own_b : nullptr, columns, 0, a, own);
    });
    return;
  }

  T* const shared = reinterpret_cast<T*>(w.shared);
  for (i64 item = 0; item < p.batches; ++item)
    for (i64 pass = 0; pass < passes; ++pass) {
      const i64 start = pass * p.pass, panels = at_most(p.pass / N, ceil_div(g.n - start, N)),
                columns = panels * N;
      if (item + pass > 0) w.barrier();  // the packed B of the pass before is free
      w.each(panels * p.k_chunks, [&](i64 part) {
        const i64 q = part / panels, j = part % panels * N;
        const i64 k0 = p.k_start(q), k1 = p.k_start(q + 1);
        pack_b<T>(g, p, item, k0, k1, start + j, at_most(g.n, start + j + N),
                  shared + k0 * columns + j * (k1 - k0));
      });
      w.barrier();
      w.each(p.row_blocks * p.column_blocks, [&](i64 part) {
        const i64 i = part % p.row_blocks, j = part / p.row_blocks;
        const i64 j0 = columns_of(start, panels, j), j1 = columns_of(start, panels, j + 1);
        if (j0 == j1) return;
        block<T>(g, p, item, i * g.m / p.row_blocks, (i + 1) * g.m / p.row_blocks, j0, j1, shared, columns,
                 j0 - start, a, own);
      });
    }
}

// ---- few rows times long contiguous columns (decoding with a transposed weight): dot products, nothing
// packed ----

constexpr i64 dot_rows = 8;

bool is_dots(const Gemm& g) {
  return g.a.col == 1 && g.b.row == 1 && (g.m < g.n ? g.m : g.n) <= dot_rows && g.k >= 2 * Tile<float>::width;
}

// c[i·row + j·col] = Σ_p a(i, p)·b(p, j) + d for M rows and J columns, whose elements along k are contiguous.
template <class S, int M, int J>
void dots(i64 k, const S* a, i64 a_row, const S* b, i64 b_col, compute_t<S> sums[M][J]) {
  using V = vector_t<S>;
  constexpr int W = lanes<V>;
  V sum[M][J] = {};
  const auto step = [&](i64 p, auto&& read) {
    V bv[J];
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) bv[j] = read(b + j * b_col + p);
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
      const V av = read(a + i * a_row + p);
#pragma GCC unroll 4
      for (int j = 0; j < J; ++j) sum[i][j] = fma(av, bv[j], sum[i][j]);
    }
  };
  i64 p = 0;
  for (; p + W <= k; p += W)
    step(
        p, [](const S* from) __attribute__((always_inline)) { return load(from); });
  if (p < k)
    step(
        p, [rest = static_cast<int>(k - p)](const S* from)
               __attribute__((always_inline)) { return load_partial(from, rest); });
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < J; ++j) sums[i][j] = reduce_add(sum[i][j]);
}

template <class S, int M>
void dot_columns(const Gemm& g, const S* a, const S* b, i64 item, i64 j0, i64 j1) {
  using T = compute_t<S>;
  constexpr int J = M <= 4 ? 4 : 2;
  const i64 c_at = batch_offset(g, g.c, item), d_at = batch_offset(g, g.d, item);
  for (i64 j = j0; j < j1;) {
    T sums[M][J];
    const int columns = j1 - j >= J ? J : 1;
    if (columns == J) {
      dots<S, M, J>(g.k, a, g.a.row, b + j * g.b.col, g.b.col, sums);
    } else {
      T one[M][1];
      dots<S, M, 1>(g.k, a, g.a.row, b + j * g.b.col, g.b.col, one);
      for (int i = 0; i < M; ++i) sums[i][0] = one[i][0];
    }
    with_storage<T>(g.out_type, [&](auto* tag) {
      using O = std::remove_cv_t<std::remove_pointer_t<decltype(tag)>>;
      for (int i = 0; i < M; ++i)
        for (int q = 0; q < columns; ++q) {
          T sum = sums[i][q];
          if (g.d.data)
            sum += static_cast<T>(static_cast<const O*>(g.d.data)[d_at + i * g.d.row + (j + q) * g.d.col]);
          static_cast<O*>(g.c.data)[c_at + i * g.c.row + (j + q) * g.c.col] = static_cast<O>(sum);
        }
    });
    j += columns;
  }
}

template <class T>
void run_dots(const Gemm& given, Worker& w) {
  const Gemm g = given.m <= given.n ? given : swapped(given);
  if (is_empty(g)) return;
  i64 batches = 1;
  for (int i = 0; i < g.batch_rank; ++i) batches *= g.batch[i];
  const i64 span = 32, blocks = ceil_div(g.n, span);  // columns
  w.each(batches * blocks, [&](i64 part) {
    const i64 item = part / blocks, j0 = part % blocks * span, j1 = at_most(g.n, j0 + span);
    with_storage<T>(g.type, [&](auto* tag) {
      using S = std::remove_cv_t<std::remove_pointer_t<decltype(tag)>>;
      const S *a = element<T, S>(g, g.a, item, 0, 0), *b = element<T, S>(g, g.b, item, 0, 0);
      switch (g.m) {
        case 1:
          return dot_columns<S, 1>(g, a, b, item, j0, j1);
        case 2:
          return dot_columns<S, 2>(g, a, b, item, j0, j1);
        case 3:
          return dot_columns<S, 3>(g, a, b, item, j0, j1);
        case 4:
          return dot_columns<S, 4>(g, a, b, item, j0, j1);
        case 5:
          return dot_columns<S, 5>(g, a, b, item, j0, j1);
        case 6:
          return dot_columns<S, 6>(g, a, b, item, j0, j1);
        case 7:
          return dot_columns<S, 7>(g, a, b, item, j0, j1);
        default:
          return dot_columns<S, 8>(g, a, b, item, j0, j1);
      }
    });
  });
}

template <class T>
ScratchSize scratch(const Gemm& g, int threads) {
  if (is_empty(g)) return {};
  const Plan p = plan_for<T>(g, threads);
  const i64 own = aligned(p.a_elements) + aligned(p.c_elements) + (p.shared_b ? 0 : aligned(p.b_elements));
  return {static_cast<std::size_t>(own) * sizeof(T),
          p.shared_b ? static_cast<std::size_t>(aligned(p.b_elements)) * sizeof(T) : 0};
}

}  // namespace

ScratchSize gemm_scratch(const Gemm& g, int threads) {
  if (is_dots(g)) return {};
  const Gemm n = normalised(g);
  return g.type == DType::f64 ? scratch<double>(n, threads) : scratch<float>(n, threads);
}

void gemm(const Gemm& g, Worker& worker) {
  if (is_dots(g)) return g.type == DType::f64 ? run_dots<double>(g, worker) : run_dots<float>(g, worker);
  const Gemm n = normalised(g);
  if (g.type == DType::f64) {
    run<double>(n, worker);
  } else {
    run<float>(n, worker);
  }
}

}  // namespace tg::cpu::TG_ISA
