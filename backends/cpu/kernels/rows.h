// Operands as rows along one axis, for kernels that process rows in the compute type. Also loops over the
// vectors of a row.
#pragma once

#include "backends/cpu/kernels/axes.h"
#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/kernels/simd_math.h"

namespace tg::cpu::TG_ISA {

// A result of at least this many bytes bypasses the caches.
inline constexpr i64 stream_from = piece_size(16 << 20, 1 << 12);

// The rows of an operand along `axis`, numbered row-major over the other axes. If `axis` is -1, every element
// is a row. A row that is contiguous in memory and of type C is used in place. Other rows are copied through
// a buffer of n elements of C. If a result is too large for the caches, its rows are also copied, and the
// copies bypass the caches.
template <class C>
class AxisRows {
 public:
  AxisRows() = default;
  [[gnu::noinline]] AxisRows(const Arg& a, int axis)
      : data_(a.data), size_(static_cast<i64>(size_of(a.dtype))) {
    for (int i = 0; i < a.layout.rank(); ++i)
      if (i != axis) outer_.push({a.layout.shape[i], a.layout.strides[i], 0});
    count = outer_.numel();
    outer_.merge();
    if (axis >= 0) n = a.layout.shape[axis], stride_ = a.layout.strides[axis];
    load_ = block_load(a.dtype, compute);
    store_ = block_store(compute, a.dtype);
    direct_ = a.dtype == compute && (stride_ == 1 || n == 1);
  }
  // A result. It may share the memory of the operands `over`, which are already in the caches.
  template <class... Over>
  AxisRows(const Arg& a, int axis, Over... over) : AxisRows(a, axis) {
    streams_ = direct_ && n * count * static_cast<i64>(sizeof(C)) >= stream_from &&
               ((a.data != over) && ...) && n * static_cast<i64>(sizeof(C)) % TG_VECTOR_BYTES == 0;
  }

  const C* read(i64 row, C* buffer) const {
    if (direct_) return reinterpret_cast<const C*>(at(row));
    load_(buffer, at(row), stride_, n);
    return buffer;
  }
  C one(i64 row) const {  // for rows of one element
    C v;
    load_(&v, at(row), 0, 1);
    return v;
  }
  // Returns the memory to which the row must be written. After the write, the next function must be called.
  C* target(i64 row, C* buffer) const {
    return direct_ && !streams_ ? reinterpret_cast<C*>(at(row)) : buffer;
  }
  void finish(i64 row, const C* values) const {
    std::byte* to = at(row);
    if (streams_ && reinterpret_cast<std::uintptr_t>(to) % TG_VECTOR_BYTES == 0)
      stream_copy(to, reinterpret_cast<const std::byte*>(values), n * static_cast<i64>(sizeof(C)));
    else if (streams_ || !direct_)
      store_(to, values, stride_, n);
  }
  // Each thread must call this function after its last row.
  void end() const {
    if (streams_) stream_end();
  }

  i64 count = 0;  // number of rows
  i64 n = 1;      // elements per row

 private:
  static constexpr DType compute = dtype_of<C>;
  std::byte* at(i64 row) const {
    i64 offset = 0;
    for (int a = outer_.rank - 1; a > 0; --a) {
      offset += row % outer_.axis[a].size * outer_.axis[a].in;
      row /= outer_.axis[a].size;
    }
    if (outer_.rank > 0) offset += row * outer_.axis[0].in;
    return data_ + offset * size_;
  }

  AxisList outer_;
  std::byte* data_ = nullptr;
  i64 size_ = 0, stride_ = 1;
  LoadFn load_ = nullptr;
  StoreFn store_ = nullptr;
  bool direct_ = false, streams_ = false;
};

// All elements of an operand in row-major order, block by block, for kernels that ignore the shape.
template <class C>
class Flat {
 public:
  static constexpr i64 block = 1024;  // elements that a buffer must hold

  explicit Flat(const Arg& a) : data_(a.data), size_(static_cast<i64>(size_of(a.dtype))) {
    for (int i = 0; i < a.layout.rank(); ++i) outer_.push({a.layout.shape[i], a.layout.strides[i], 0});
    count = outer_.numel();
    outer_.merge();
    if (outer_.rank > 0) inner_ = outer_.inner();
    outer_ = outer_.outer();
    load_ = block_load(a.dtype, dtype_of<C>);
    store_ = block_store(dtype_of<C>, a.dtype);
    direct_ = a.dtype == dtype_of<C> && outer_.rank == 0 && (inner_.in == 1 || inner_.size == 1);
  }

  // Returns elements start … start + n - 1, n ≤ block.
  const C* read(i64 start, i64 n, C* buffer) const {
    if (direct_) return reinterpret_cast<const C*>(data_) + start;
    each_run(outer_, inner_, start, n, [&](i64 at, i64 offset, i64, i64 m) {
      load_(buffer + at, data_ + offset * size_, inner_.in, m);
    });
    return buffer;
  }
  C* target(i64 start, C* buffer) const { return direct_ ? reinterpret_cast<C*>(data_) + start : buffer; }
  void finish(i64 start, i64 n, const C* values) const {
    if (direct_) return;
    each_run(outer_, inner_, start, n, [&](i64 at, i64 offset, i64, i64 m) {
      store_(data_ + offset * size_, values + at, inner_.in, m);
    });
  }

  i64 count;

 private:
  AxisList outer_;
  Axis inner_{1, 1, 0};
  std::byte* data_;
  i64 size_;
  LoadFn load_;
  StoreFn store_;
  bool direct_;
};

// Divides n elements into parts and calls f(start, count) for each. `start` is a multiple of Flat::block, and
// `count` at most Flat::block.
template <class F>
TG_INLINE void each_block(Worker& w, i64 n, F f) {
  constexpr i64 block = Flat<float>::block, some = 8 * block;
  w.each((n + some - 1) / some, [&](i64 part) {
    const i64 end = part * some + some < n ? part * some + some : n;
    for (i64 i = part * some; i < end; i += block) f(i, end - i < block ? end - i : block);
  });
}

// Hands out rows in parts of about 8192 elements: calls f(first row, one past the last row) for each part.
template <class F>
TG_INLINE void each_rows(Worker& w, i64 rows, i64 n, F f) {
  const i64 some = n >= 8192 ? 1 : 8192 / (n > 0 ? n : 1);
  w.each((rows + some - 1) / some,
         [&](i64 part) { f(part * some, part * some + some < rows ? part * some + some : rows); });
}
// Hands out rows and calls f(row) for each row.
template <class F>
TG_INLINE void each_row(Worker& w, i64 rows, i64 n, F f) {
  each_rows(w, rows, n, [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) f(r);
  });
}

// ---- the elements of a list of tensors, divided between threads as if they were one tensor ----

inline constexpr i64 list_chunk = piece_size(8, 1) * Flat<float>::block;

inline i64 chunks_of(i64 count) {
  return ceil_div(count, list_chunk);
}

// Calls f(tensor, chunk, first element, end) for each chunk of each tensor. Chunks of all tensors are
// numbered together. count(i) returns the number of elements of tensor i. Chunks depend only on shapes.
template <class Count, class F>
TG_INLINE void each_chunk(Worker& w, i64 tensors, Count count, F f) {
  i64 chunks = 0;
  for (i64 i = 0; i < tensors; ++i) chunks += chunks_of(count(i));
  i64 tensor = 0, first = 0;  // tensor, and its first chunk; chunks arrive in increasing order
  w.each(chunks, [&](i64 chunk) {
    if (chunk < first) tensor = first = 0;
    for (i64 own; chunk >= first + (own = chunks_of(count(tensor))); ++tensor) first += own;
    const i64 begin = (chunk - first) * list_chunk, n = count(tensor);
    f(tensor, chunk, begin, begin + list_chunk < n ? begin + list_chunk : n);
  });
}

// ---- loops along a row: f(i, k) processes k elements, starting at i; k is a whole vector or the remainder
// ----

template <class C, class F>
TG_INLINE void for_vectors(i64 n, F f) {
  constexpr int W = lanes<vector_t<C>>;
  i64 i = 0;
  for (; i + W <= n; i += W) f(i, W);
  if (i < n) f(i, static_cast<int>(n - i));
}

template <class C>
TG_INLINE vector_t<C> load_n(const C* p, int k) {  // missing elements are 0
  return k == lanes<vector_t<C>> ? load(p) : load_partial(p, k);
}
template <class C>
TG_INLINE void store_n(C* p, vector_t<C> v, int k) {
  if (k == lanes<vector_t<C>>)
    store(p, v);
  else
    store_partial(p, v, k);
}
// Returns the first k elements of v, and `other` for the rest.
template <class C>
TG_INLINE vector_t<C> first_n(vector_t<C> v, int k, C other) {
  using V = vector_t<C>;
  if (k == lanes<V>) return v;
  C at[lanes<V>];
  for (int i = 0; i < lanes<V>; ++i) at[i] = static_cast<C>(i);
  return select(load(at) < splat<V>(k), v, splat<V>(other));
}

// Number of elements that are summed in the compute type. For longer rows, the sums of such blocks are added
// in f64.
inline constexpr i64 summed_block = piece_size(1 << 16, 256);

// Σ f(i, k) over elements begin … end - 1 of a row. f returns 0 for elements beyond k. Four independent sums
// hide the adder's latency.
template <class C, class F>
TG_INLINE C sum_of_block(i64 begin, i64 end, F& f) {
  using V = vector_t<C>;
  constexpr int W = lanes<V>;
  V s[4] = {};
  i64 i = begin;
  for (; i + 4 * W <= end; i += 4 * W)
    for (int k = 0; k < 4; ++k) s[k] += f(i + k * W, W);
  for (; i + W <= end; i += W) s[0] += f(i, W);
  if (i < end) s[1] += f(i, static_cast<int>(end - i));
  return reduce_add((s[0] + s[1]) + (s[2] + s[3]));
}
template <class C, class F>
[[gnu::noinline, gnu::cold]] C sum_of_blocks(i64 n, F f) {
  double whole = 0;
  for (i64 i = 0; i < n; i += summed_block)
    whole += static_cast<double>(sum_of_block<C>(i, n - i < summed_block ? n : i + summed_block, f));
  return static_cast<C>(whole);
}
// Σ f(i, k) over a row of n elements. f must capture by value, so that its variables stay in registers.
template <class C, class F>
TG_INLINE C sum_of(i64 n, F f) {
  return n <= summed_block ? sum_of_block<C>(0, n, f) : sum_of_blocks<C>(n, f);
}

// exp of one number, by the same arithmetic as for vectors.
template <class C>
TG_INLINE C exp_of(C x) {
  return exp(splat<vector_t<C>>(x))[0];
}

}  // namespace tg::cpu::TG_ISA
