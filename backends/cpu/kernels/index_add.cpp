// index_add: out = x, then out[p, indices[j], q] += src[p, j, q] for every j, where p, j and q stand for any
// number of axes each. The indices are sorted first. One thread then sums a slice of `out` in the order of j.
// Sums are in the compute type and are rounded once. Results are bitwise identical for any number of threads.
#include "backends/cpu/kernels/strided.h"
#include "ops/index.h"

namespace tg::cpu::TG_ISA {

namespace {

constexpr i64 block = piece_size(128, 32);  // elements of a slice summed at a time
constexpr i64 at_once = piece_size(64, 8);  // sorted indices in one part
// Number of slices that are summed before their sum is added to the total, in f64. This bounds the rounding
// error.
constexpr i64 together = piece_size(4096, 16);

// The indices in ascending order, by a stable counting sort.
struct Sorted {
  i64 *position, *index;  // [count]: the original position of an index, and the index
  i64* first;             // [size + 1]: first position of each index; `count` at the end

  Sorted(std::byte* memory, i64 indices)
      : position(reinterpret_cast<i64*>(memory)), index(position + indices), first(index + indices) {}

  void sort(Worker& w, const Arg& indices, i64 size) const {
    const i64 n = indices.layout.numel();
    for (i64 i = 0; i <= size; ++i) first[i] = 0;
    if (n == 0) return;
    const AxisList axes =
        axes_of(indices.layout, 0, indices.layout.rank(), static_cast<i64>(size_of(indices.dtype)));
    Counter at(axes, 0);
    for (i64 j = 0; j < n; ++j, at.next()) {
      const i64 i = read_index(indices, at.in);
      if (w.check_index(i, size, j)) ++first[i + 1];
    }
    for (i64 i = 0; i < size; ++i) first[i + 1] += first[i];
    for (i64 j = 0; j < n; ++j, at.next()) {
      const i64 i = read_index(indices, at.in);
      if (static_cast<std::uint64_t>(i) >= static_cast<std::uint64_t>(size)) continue;
      index[first[i]] = i;
      position[first[i]++] = j;
    }
    // first[i] is now the first position of index i + 1. The last valid entry is the end of all indices.
  }
};

// The sums for a range [begin, end) of the sorted indices and n elements of each slice. `out` and `src` point
// to the first element. Steps are in bytes.
template <class C>
struct Sum {
  using Whole = std::conditional_t<std::is_same_v<C, float>, double, C>;
  LoadFn load;
  StoreFn store;
  bool direct;             // src can be read in place
  i64 out_step, src_step;  // strides along the run, in elements
  i64 slice;               // bytes between slices of out

  void run(std::byte* out, const std::byte* src, const Sorted& s, i64 count, i64 begin, i64 end,
           const AxisList& number, i64 n) const {
    C total[block], next[block];
    while (begin > 0 && begin < end && s.index[begin] == s.index[begin - 1]) ++begin;
    for (i64 k = begin; k < end;) {
      const i64 index = s.index[k];
      std::byte* row = out + index * slice;
      load(total, row, out_step, n);
      Whole whole[block];  // sums of `together` slices each; unused if there are fewer slices
      const i64 first = k;
      for (; k < count && s.index[k] == index; ++k) {
        if (k > first && (k - first) % together == 0)
          for (i64 i = 0; i < n; ++i) {
            whole[i] = (k - first == together ? 0 : whole[i]) + static_cast<Whole>(total[i]);
            total[i] = 0;
          }
        const std::byte* slice_of_src = src + Counter(number, s.position[k]).in;
        const C* add = next;
        if (direct)
          add = reinterpret_cast<const C*>(slice_of_src);
        else
          load(next, slice_of_src, src_step, n);
        for (i64 i = 0; i < n; ++i) total[i] += add[i];
      }
      if (k - first > together)
        for (i64 i = 0; i < n; ++i) total[i] = static_cast<C>(whole[i] + static_cast<Whole>(total[i]));
      store(row, total, out_step, n);
    }
  }
};

template <class C>
void add_all(Worker& w, const Call& call) {
  const Arg &x = call.in[0], &indices = call.in[1], &src = call.in[2], &out = call.out[0];
  const int axis = static_cast<int>(call.attrs->as<AxisAttrs>().axis), rank = x.layout.rank();
  // For axes a after the indexed axis, axis a of x is axis a + more of src.
  const int more = indices.layout.rank() - 1;
  const i64 size = static_cast<i64>(size_of(x.dtype));
  // The run is the last axis of x that is not indexed. The counter iterates over the remaining axes, without
  // the indexed one.
  const int run = rank == 1 ? -1 : axis == rank - 1 ? rank - 2 : rank - 1;
  AxisList walked;  // `in`: of src, `out`: of out, in bytes
  for (int a = 0; a < rank; ++a)
    if (a != axis && a != run)
      walked.push({x.layout.shape[a], src.layout.strides[a < axis ? a : a + more] * size,
                   out.layout.strides[a] * size});
  walked.merge();
  const AxisList number = axes_of(src.layout, axis, axis + more + 1, size);
  const i64 length = run < 0 ? 1 : x.layout.shape[run];
  const i64 out_step = run < 0 ? 1 : out.layout.strides[run];
  const i64 src_step = run < 0 ? 1 : src.layout.strides[run < axis ? run : run + more];

  const Sorted sorted(w.shared, indices.layout.numel());
  const i64 count = sorted.first[x.layout.shape[axis] - 1];
  const Sum<C> sum{block_load(x.dtype, dtype_of<C>),
                   block_store(dtype_of<C>, x.dtype),
                   x.dtype == dtype_of<C> && src_step == 1,
                   out_step,
                   src_step,
                   out.layout.strides[axis] * size};
  const i64 blocks = (length + block - 1) / block, ranges = (count + at_once - 1) / at_once;
  w.each(walked.numel() * blocks * ranges, [&](i64 part) {
    const i64 b = part % blocks * block, begin = part / blocks % ranges * at_once;
    const Counter at(walked, part / blocks / ranges);
    sum.run(out.data + at.out + b * out_step * size, src.data + at.in + b * src_step * size, sorted, count,
            begin, begin + at_once < count ? begin + at_once : count, number,
            b + block < length ? block : length - b);
  });
}

void run(Worker& w, const Call& call) {
  const Arg &x = call.in[0], &indices = call.in[1], &out = call.out[0];
  const i64 size = x.layout.shape[static_cast<int>(call.attrs->as<AxisAttrs>().axis)];
  w.each(1, [&](i64) { Sorted(w.shared, indices.layout.numel()).sort(w, indices, size); });
  if (out.data != x.data) move_all(w, Move(out, x));
  if (!w.barrier()) return;
  if (out.layout.numel() == 0 || call.in[2].layout.numel() == 0) return;
  with_compute_type(x.dtype, [&]<class C>(C) { add_all<C>(w, call); });
}

Scratch scratch(const Call& call, int) {
  const i64 size = call.in[0].layout.shape[static_cast<int>(call.attrs->as<AxisAttrs>().axis)];
  return {0, static_cast<std::size_t>(call.in[1].layout.numel() * 2 + size + 1) * sizeof(i64)};
}

}  // namespace

extern const Kernel index_add_kernel{&run, &scratch};

}  // namespace tg::cpu::TG_ISA
