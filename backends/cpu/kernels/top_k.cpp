// top_k: values and indices of the k largest elements of each line in descending order. Equal elements are
// ordered by index, and NaN is larger than any number.
#include "backends/cpu/kernels/lines.h"
#include "ops/index.h"

namespace tg::cpu::TG_ISA {

namespace {

constexpr i64 block = piece_size(256, 32);

template <class C>
TG_INLINE bool larger(C a, C b) {
  return a > b || (a != a && b == b);
}

// A heap of the best k elements so far, with the worst of the k on top.
template <class C>
struct Best {
  C* value;
  i64* place;
  i64 count, k;

  TG_INLINE bool worse(i64 a, i64 b) const {
    return larger(value[b], value[a]) || (!larger(value[a], value[b]) && place[a] > place[b]);
  }
  TG_INLINE void swap(i64 a, i64 b) {
    TG_ISA::swap(value[a], value[b]);
    TG_ISA::swap(place[a], place[b]);
  }
  void sink(i64 from, i64 end) {
    for (i64 at = from, child; (child = 2 * at + 1) < end; at = child) {
      if (child + 1 < end && worse(child + 1, child)) ++child;
      if (!worse(child, at)) return;
      swap(at, child);
    }
  }
  void offer(C v, i64 p) {  // positions must be in ascending order
    if (count < k) {
      value[count] = v;
      place[count] = p;
      if (++count == k)
        for (i64 i = k / 2; i-- > 0;) sink(i, k);
    } else if (larger(v, value[0])) {
      value[0] = v;
      place[0] = p;
      sink(0, k);
    }
  }
  void sort() {  // the best first
    for (i64 end = k - 1; end > 0; --end) {
      swap(0, end);
      sink(0, end);
    }
  }
};

template <class C>
void run_as(Worker& w, const Call& call) {
  const Arg &x = call.in[0], &values = call.out[0], &places = call.out[1];
  const auto& a = call.attrs->as<TopKAttrs>();
  const Lines lines(x.layout, static_cast<int>(a.axis), 1);
  const i64 size = static_cast<i64>(size_of(x.dtype)), length = lines.length;
  const i64 step = x.layout.strides[lines.axis], out_step = values.layout.strides[lines.axis];
  const LoadFn load = block_load(x.dtype, dtype_of<C>);
  const StoreFn store = block_store(dtype_of<C>, x.dtype);
  lines.each(w, [&](i64 line) {
    const std::byte* from = x.data + lines.offset(line, x.layout) * size;
    const i64 to = lines.offset(line, values.layout);
    Best<C> best{reinterpret_cast<C*>(w.scratch + a.k * static_cast<i64>(sizeof(i64))),
                 reinterpret_cast<i64*>(w.scratch), 0, a.k};
    C next[block];
    for (i64 done = 0; done < length; done += block) {
      const i64 n = length - done < block ? length - done : block;
      load(next, from + done * step * size, step, n);
      for (i64 i = 0; i < n; ++i) best.offer(next[i], done + i);
    }
    best.sort();
    store(values.data + to * size, best.value, out_step, a.k);
    i64* place = reinterpret_cast<i64*>(places.data) + to;
    for (i64 i = 0; i < a.k; ++i) place[i * out_step] = best.place[i];
  });
}

void run(Worker& w, const Call& call) {
  if (call.out[0].layout.numel() == 0) return;
  with_compute_type(call.in[0].dtype, [&]<class C>(C) { run_as<C>(w, call); });
}

Scratch scratch(const Call& call, int) {
  return {static_cast<std::size_t>(call.attrs->as<TopKAttrs>().k) * (sizeof(i64) + sizeof(double)), 0};
}

}  // namespace

extern const Kernel top_k_kernel{&run, &scratch};

}  // namespace tg::cpu::TG_ISA
