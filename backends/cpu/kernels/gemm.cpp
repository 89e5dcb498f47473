// GEMM by blocks of C, which threads process. For each block, the kernel iterates over k in fixed chunks. For
// each chunk, A is packed or read in place. It stays in L2 while panels of B pass through L1. For large
// GEMMs, all threads together pack B once. Otherwise each thread packs the columns that it needs, without a
// barrier.
#include "backends/cpu/kernels/gemm.h"

#include <cstdio>

#include "backends/cpu/kernels/amx.h"
#include "backends/cpu/kernels/gemm_tiles.h"

namespace tg::cpu::TG_ISA {
namespace {

// Everything that depends only on shapes, strides, types and the number of threads.
struct Plan {
  i64 batches;
  bool pairs;  // pairs of bf16 along k, each in the space of an f32
  i64 k;       // elements, or pairs, along k
  bool pack_a, pack_b, shared_b, own_c;
  bool panel_b;                            // each panel is packed just before its only use
  bool copy_a;                             // pack_a: copies rows unchanged, with a stride of row_length
  i64 k_chunks;                            // chunk q is [q·k/k_chunks, (q+1)·k/k_chunks)
  i64 pass;                                // columns whose B is packed at a time, a multiple of the panel
  i64 row_blocks;                          // of m
  i64 column_blocks;                       // of a pass
  i64 a_elements, b_elements, c_elements;  // scratch, per thread (b: or shared)

  i64 k_start(i64 q) const { return q * k / k_chunks; }

  // Blocks are numbered so that the index along the longer side of C varies slowest. The blocks of a thread
  // then form a range of that side. The thread has the same range in the previous and next steps, so the
  // elements are in its cache.
  bool by_rows;
  i64 row_of(i64 block) const { return by_rows ? block / column_blocks : block % row_blocks; }
  i64 column_of(i64 block) const { return by_rows ? block % column_blocks : block / row_blocks; }
};

// A block of A has 112·384 f32 = 168 KiB in L2. A block of C has 112·1024 f32 = 448 KiB in L2, for all chunks
// of k.
constexpr i64 row_block = TG_VECTOR_BYTES == 32 ? piece_size(192, 12) : piece_size(112, 28);
constexpr i64 column_block = piece_size(1024, 64);
constexpr i64 pass_bytes = piece_size(8 << 20, 1 << 14);  // packed B of one pass
constexpr i64 pack_b_from =
    TG_VECTOR_BYTES == 64 ? 40 : 8;  // register tiles of rows; CPUs with 512-bit vectors have a larger L1

// Row stride of a copy with k elements per row. It is an odd number of cache lines, so rows do not map to the
// same cache sets.
template <class T>
i64 row_length(i64 k) {
  constexpr i64 line = 64 / sizeof(T);
  return (ceil_div(k, line) | 1) * line;
}

template <class T>
Plan plan_for(const Gemm& g, int threads) {
  constexpr i64 N = Tile<T>::columns, M = Tile<T>::rows;
  Plan p;
  p.by_rows = g.m > g.n;
  p.batches = batches_of(g);
  const bool native = size_of(g.type) == sizeof(T);
  p.own_c = g.c.col != 1 || size_of(g.out_type) != sizeof(T) || (g.d.data && g.d.col != 1);
  p.pairs = is_pairs(g);
  p.k = p.pairs ? ceil_div(g.k, 2) : g.k;
  p.k_chunks = k_chunks(p.k);
  // If D is added in place in C, the addition happens before the second chunk. With a separate block, it
  // happens after the last chunk. A batch-invariant GEMM must use the same order for all layouts of D and C.
  p.own_c = p.own_c || (g.batch_invariant && g.d.data && p.k_chunks > 1);
  const i64 k_longest = ceil_div(p.k, p.k_chunks);

  // Rows of B are read in place unless many rows of C share the cost of packing.
  p.pack_b = !native || g.b.col != 1 || g.m > pack_b_from * M;
  const double flops = 2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
  p.shared_b = p.pack_b && p.batches < 2 * threads && flops > 1.2e7;
  p.pass = at_least(N, pass_bytes / static_cast<i64>(sizeof(T)) / at_least(1, p.k) / N * N);
  p.pass = at_most(p.pass, ceil_div(g.n, N) * N);
  p.row_blocks = at_least(1, ceil_div(g.m, p.shared_b ? row_block : 8 * row_block));
  p.column_blocks = 1;
  // There must be enough blocks to balance the load. Cores are not equally fast, so a thread without blocks
  // of its own left continues with blocks of other threads.
  const i64 enough = threads == 1 ? 1 : 4 * threads, many = threads == 1 ? 1 : 6 * threads;
  if (p.shared_b) {
    if (p.row_blocks < enough)
      p.row_blocks = at_most(ceil_div(p.row_blocks, threads) * threads, ceil_div(g.m, 2 * M));
    p.column_blocks = at_most(ceil_div(many, p.row_blocks), p.pass / N);
    p.column_blocks = at_least(p.column_blocks, ceil_div(p.pass, column_block));
  } else if (p.batches * p.row_blocks * ceil_div(g.n, p.pass) < enough) {
    const i64 per = ceil_div(enough, p.batches * p.row_blocks * ceil_div(g.n, p.pass));
    p.column_blocks = at_most(per, p.pass / N);
    if (p.column_blocks < per)
      p.row_blocks = at_most(p.row_blocks * ceil_div(per, p.column_blocks), ceil_div(g.m, 2 * M));
  }
  p.row_blocks = at_least(1, p.row_blocks);
  p.panel_b = p.shared_b && p.row_blocks == 1;
  if (p.panel_b) p.shared_b = false;
  const i64 rows = ceil_div(g.m, p.row_blocks),
            columns = at_most(p.pass, (ceil_div(p.pass / N, p.column_blocks)) * N);
  // Packing A for each block is faster in three cases. C has many columns, rows of A map to the same cache
  // sets, or the hardware prefetcher does not detect the reads of A.
  const i64 a_stride = g.a.col == 1 ? g.a.row : g.a.col;
  const bool rows_collide = a_stride * static_cast<i64>(sizeof(T)) % 2048 == 0;
  const bool unasked = !asks_ahead && g.a.row == 1 && g.m * g.k * static_cast<i64>(sizeof(T)) > (512 << 10);
  p.pack_a = !native || (g.a.col != 1 && g.a.row != 1) ||
             (columns > 4 * N && (rows_collide || unasked || columns >= 512));
  // Rows that are contiguous along k are copied unchanged. Chunks would need a transposition, and the
  // micro-kernel reads rows as fast as chunks.
  p.copy_a = TG_VECTOR_BYTES == 32 && p.pack_a && g.a.col == 1;
  p.a_elements = !p.pack_a ? 0 : rows * (p.copy_a ? row_length<T>(k_longest) : k_longest);
  p.b_elements = !p.pack_b ? 0 : p.panel_b ? N * k_longest : (p.shared_b ? p.pass : columns) * p.k;
  p.c_elements = p.own_c ? rows * columns : 0;
  return p;
}

template <class T>
inline constexpr bool may_be_pairs = has_pairs && sizeof(T) == 4;

// Packs A[i0:i1, k0:k1] into chunks or rows, and B[k0:k1, j0:j1] into panels. k0 and k1 have the units of
// Plan::k.
template <class T>
Left<T> pack_a(const Gemm& g, const Plan& p, i64 item, i64 i0, i64 i1, i64 k0, i64 k1, T* to) {
  if constexpr (may_be_pairs<T>)
    if (p.pairs) {
      pack_left_pairs(i1 - i0, at_most(2 * k1, g.k) - 2 * k0, element<T, bfloat16>(g, g.a, item, i0, 2 * k0),
                      g.a.row, g.a.col, to);
      return {to, 0, 0, Form::packed};
    }
  const i64 ld = row_length<T>(k1 - k0);
  with_storage<T>(g.type, [&]<class S>(const S*) {
    const S* from = element<T, S>(g, g.a, item, i0, k0);
    if (p.copy_a)
      copy_rows(i1 - i0, k1 - k0, k1 - k0, from, g.a.row, to, ld);
    else
      pack_left(i1 - i0, k1 - k0, from, g.a.row, g.a.col, to);
  });
  return p.copy_a ? Left<T>{to, ld, 1} : Left<T>{to, 0, 0, Form::packed};
}
template <class T>
void pack_b(const Gemm& g, [[maybe_unused]] const Plan& p, i64 item, i64 k0, i64 k1, i64 j0, i64 j1, T* to) {
  if constexpr (may_be_pairs<T>)
    if (p.pairs)
      return pack_right_pairs(at_most(2 * k1, g.k) - 2 * k0, j1 - j0,
                              element<T, bfloat16>(g, g.b, item, 2 * k0, j0), g.b.row, g.b.col, to);
  with_storage<T>(g.type, [&]<class S>(const S*) {
    pack_right(k1 - k0, j1 - j0, element<T, S>(g, g.b, item, k0, j0), g.b.row, g.b.col, to);
  });
}

// Computes the block C[i0:i1, j0:j1]. `packed` is null or the packed B, which starts at column j0. It has one
// part of `columns` columns per chunk of k. `panel` is memory for one packed panel, if panel_b is set.
template <class T>
void block(const Gemm& g, const Plan& p, i64 item, i64 i0, i64 i1, i64 j0, i64 j1, const T* packed,
           i64 columns, i64 skip, T* scratch_a, T* own, T* panel) {
  constexpr i64 N = Tile<T>::columns;
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
    const Left<T> a = p.pack_a ? pack_a(g, p, item, i0, i1, k0, k1, scratch_a)
                               : Left<T>{element<T, T>(g, g.a, item, i0, k0), g.a.row, g.a.col};
    Right<T> b{nullptr, 0, Form::packed};
    if (packed) {
      b.data = packed + k0 * columns + skip * k;
    } else {
      b = {element<T, T>(g, g.b, item, k0, j0), g.b.row};
    }
    const auto add_product = [&](i64 j, i64 width, const Right<T>& right) {
      if constexpr (may_be_pairs<T>)
        if (p.pairs) return multiply_pairs(m, width, k, a, right, c + j, ldc, d ? d + j : nullptr, ldd);
      multiply(m, width, k, a, right, c + j, ldc, d ? d + j : nullptr, ldd);
    };
    if (p.panel_b) {
      for (i64 j = 0; j < n; j += N) {
        pack_b<T>(g, p, item, k0, k1, j0 + j, at_most(j1, j0 + j + N), panel);
        add_product(j, at_most(N, n - j), {panel, 0, Form::packed});
      }
    } else {
      add_product(0, n, b);
    }
    d = c;
    ldd = ldc;
  }
  if (p.own_c) write_out(g, item, i0, i1, j0, j1, own, own_ld);
}

template <class T>
void run(const Gemm& g, Worker& w) {
  constexpr i64 N = Tile<T>::columns;
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
      const i64 i = p.row_of(part % blocks), j = p.column_of(part % blocks);
      const i64 start = pass * p.pass, panels = at_most(p.pass / N, ceil_div(g.n - start, N));
      const i64 j0 = columns_of(start, panels, j), j1 = columns_of(start, panels, j + 1);
      if (j0 == j1) return;
      const i64 columns = ceil_div(j1 - j0, N) * N;
      if (p.pack_b && !p.panel_b)
        for (i64 q = 0; q < p.k_chunks; ++q)
          pack_b<T>(g, p, item, p.k_start(q), p.k_start(q + 1), j0, j1, own_b + p.k_start(q) * columns);
      block<T>(g, p, item, i * g.m / p.row_blocks, (i + 1) * g.m / p.row_blocks, j0, j1,
               p.pack_b ? own_b : nullptr, columns, 0, a, own, own_b);
    });
    return;
  }

  T* const shared = reinterpret_cast<T*>(w.shared);
  for (i64 item = 0; item < p.batches; ++item)
    for (i64 pass = 0; pass < passes; ++pass) {
      const i64 start = pass * p.pass, panels = at_most(p.pass / N, ceil_div(g.n - start, N)),
                columns = panels * N;
      if (item + pass > 0 && !w.barrier()) return;  // the previous pass no longer uses its packed B
      w.each(panels * p.k_chunks, [&](i64 part) {
        const i64 q = part / panels, j = part % panels * N;
        const i64 k0 = p.k_start(q), k1 = p.k_start(q + 1);
        pack_b<T>(g, p, item, k0, k1, start + j, at_most(g.n, start + j + N),
                  shared + k0 * columns + j * (k1 - k0));
      });
      if (!w.barrier()) return;
      w.each(p.row_blocks * p.column_blocks, [&](i64 part) {
        const i64 i = p.row_of(part), j = p.column_of(part);
        const i64 j0 = columns_of(start, panels, j), j1 = columns_of(start, panels, j + 1);
        if (j0 == j1) return;
        block<T>(g, p, item, i * g.m / p.row_blocks, (i + 1) * g.m / p.row_blocks, j0, j1, shared, columns,
                 j0 - start, a, own, nullptr);
      });
    }
}

template <class T>
Scratch scratch(const Gemm& g, int threads) {
  const Plan p = plan_for<T>(g, threads);
  const i64 own = aligned(p.a_elements) + aligned(p.c_elements) + (p.shared_b ? 0 : aligned(p.b_elements));
  return {static_cast<std::size_t>(own) * sizeof(T),
          p.shared_b ? static_cast<std::size_t>(aligned(p.b_elements)) * sizeof(T) : 0};
}

template <class T>
void describe(const Gemm& g, int threads, char* text, std::size_t size) {
  const Plan p = plan_for<T>(g, threads);
  std::snprintf(text, size, "%d×%d register tiles%s, %lld×%lld blocks, %lld of k at a time, a %s, b %s",
                static_cast<int>(Tile<T>::rows), static_cast<int>(Tile<T>::columns),
                p.pairs ? " of bf16 pairs" : "", static_cast<long long>(p.row_blocks),
                static_cast<long long>(ceil_div(g.n, p.pass) * p.column_blocks),
                static_cast<long long>(ceil_div(p.k, p.k_chunks)),
                p.copy_a   ? "copied"
                : p.pack_a ? "packed"
                           : "in place",
                !p.pack_b    ? "in place"
                : p.panel_b  ? "packed by panels"
                : p.shared_b ? "packed once for all threads"
                             : "packed by each block");
}

// Converts batch items to rows of one GEMM. The items share B and have one row each, such as one token per
// sequence.
Gemm with_items_as_rows(Gemm g) {
  for (int i = 0; g.m == 1 && i < g.batch_rank; ++i) {
    if (g.batch[i] == 1 || g.b.batch_strides[i] != 0) continue;
    g.m = g.batch[i], g.batch[i] = 1;
    for (Gemm::Matrix* x : {&g.a, &g.c, &g.d}) x->row = x->batch_strides[i];
  }
  return g;
}

// Returns the GEMM or its transpose, whichever is faster. Both make the same additions.
Gemm oriented(const Gemm& g) {
  // For few rows on tiles, a transposed weight is better as the left operand, because packing then does not
  // transpose it.
  if (g.batch_invariant && is_for_tiles(g) && g.b.row == 1 && g.m <= 16 && g.m < g.n) return swapped(g);
  return normalised(g);
}

template <class T>
constexpr GemmCase on_vectors{&scratch<T>, &run<T>, &describe<T>};
#if defined(TG_BF16_TILES)
constexpr GemmCase on_tiles{
    &tiles_scratch, &run_tiles<Amx>,
    [](const Gemm&, int, char* text, std::size_t size) { std::snprintf(text, size, "AMX tiles of bf16"); }};
#endif
constexpr GemmCase nothing{[](const Gemm&, int) { return Scratch(); }, [](const Gemm&, Worker&) {},
                           [](const Gemm&, int, char*, std::size_t) {}};

// The GEMM to compute, and its implementation.
struct Chosen {
  Gemm g;
  const GemmCase& how;
};
Chosen chosen_for(const Gemm& given) {
  const Gemm g = with_items_as_rows(given);
  if (batches_of(g) * g.m * g.n == 0) return {g, nothing};
  if (is_dots(g)) return {g, gemm_dots};
  const Gemm n = oriented(g);
#if defined(TG_BF16_TILES)
  if (is_for_tiles(n)) return {n, on_tiles};
#endif
  if (is_rows(n)) return {n, gemm_rows};
  return {n, g.type == DType::f64 ? on_vectors<double> : on_vectors<float>};
}

}  // namespace

void gemm_choice(const Gemm& given, int threads, char* text, std::size_t size) {
  const auto [g, how] = chosen_for(given);
  how.choice(g, threads, text, size);
}

Scratch gemm_scratch(const Gemm& given, int threads) {
  const auto [g, how] = chosen_for(given);
  return how.scratch(g, threads);
}

void gemm(const Gemm& given, Worker& worker) {
  const auto [g, how] = chosen_for(given);
  how.run(g, worker);
}

}  // namespace tg::cpu::TG_ISA
