// How reductions iterate and are split.
#include "backends/cuda/kernels/reduce_held.cuh"
#include "backends/cuda/kernels/reductions.h"

namespace tg::cuda {

namespace {

struct List {
  ReduceAxis* axis;
  int& rank;
  void push(ReduceAxis a) {
    if (a.size != 1) axis[rank++] = a;
  }
  void sort() {
    std::stable_sort(axis, axis + rank, [](const ReduceAxis& a, const ReduceAxis& b) { return a.in > b.in; });
  }
  // Merges two adjacent axes if the outer stride equals the inner stride times the inner size.
  void merge() {
    int n = 0;
    for (int i = 0; i < rank; ++i) {
      const ReduceAxis a = axis[i];
      if (n > 0 && axis[n - 1].in == a.in * a.size && axis[n - 1].out == a.out * a.size)
        axis[n - 1] = {axis[n - 1].size * a.size, a.in, a.out};
      else
        axis[n++] = a;
    }
    rank = n;
  }
};

constexpr i64 most_splits = 1024;

}  // namespace

ReducePlan::ReducePlan(const Layout& x, const Layout& y, const Axes& axes, bool keepdim, bool ordered,
                       const Gpu& gpu) {
  List kept_list{kept, kept_rank}, reduced_list{reduced, reduced_rank};
  for (int i = 0, o = 0; i < x.rank(); ++i) {
    const bool is_reduced = axes.contains(i);
    if (is_reduced) {
      reduced_list.push({x.shape[i], x.strides[i], 0});
      count *= x.shape[i];
    } else {
      kept_list.push({x.shape[i], x.strides[i], y.strides[o]});
      outs *= x.shape[i];
    }
    o += !is_reduced || keepdim;
  }
  kept_list.sort(), kept_list.merge();
  if (!ordered) reduced_list.sort();
  reduced_list.merge();
  i64 step = -1;  // the smallest stride of the reduced axes
  for (int a = 0; a < reduced_rank; ++a) step = step < 0 ? reduced[a].in : std::min(step, reduced[a].in);
  columns = kept_rank > 0 && (reduced_rank == 0 || kept[kept_rank - 1].in < step);
  if (outs == 0) return;
  // Each multiprocessor gets eight blocks, unless splits would be too short to justify a second launch.
  const i64 enough = 8ll * gpu.processors;
  const i64 blocks = columns ? (outs + column_width - 1) / column_width : outs,
            shortest = columns ? 64 : 4096;
  splits = std::min({(enough + blocks - 1) / blocks, (count + shortest - 1) / shortest, most_splits});
  splits = std::max<i64>(splits, 1);
}

Walk walk_of(const ReducePlan& p, int pack, bool columns) {
  Walk w{};
  w.kept.rank = w.kept_out.rank = p.kept_rank, w.reduced.rank = p.reduced_rank;
  for (int a = 0; a < p.kept_rank; ++a) {
    w.kept.size[a] = w.kept_out.size[a] = p.kept[a].size;
    w.kept.stride[a] = p.kept[a].in, w.kept_out.stride[a] = p.kept[a].out;
  }
  for (int a = 0; a < p.reduced_rank; ++a)
    w.reduced.size[a] = p.reduced[a].size, w.reduced.stride[a] = p.reduced[a].in;
  w.outs = p.outs, w.count = p.count, w.splits = p.splits;
  const int inner = (columns ? p.kept_rank : p.reduced_rank) - 1;
  w.out_step = columns ? w.kept_out.stride[inner] : 0;
  if (pack == 1) return w;
  if (columns) {
    w.outs /= pack;
    w.kept.size[inner] /= pack, w.kept_out.size[inner] /= pack;
    w.kept.stride[inner] *= pack, w.kept_out.stride[inner] *= pack;
  } else {
    w.reduced.size[inner] /= pack, w.reduced.stride[inner] *= pack;
  }
  return w;
}

bool is_of_rows(const ReducePlan& p, const void* data, HeldReduction& a) {
  if (p.columns || p.splits > 1 || p.reduced_rank != 1 || p.reduced[0].in != 1) return false;
  a.x.data = const_cast<void*>(data), a.x.step = a.y.step = 1;
  a.n = p.count, a.rows = p.outs;
  a.x.outer.rank = a.y.outer.rank = p.kept_rank;
  for (int i = 0; i < p.kept_rank; ++i) {
    a.x.outer.size[i] = a.y.outer.size[i] = p.kept[i].size;
    a.x.outer.stride[i] = p.kept[i].in, a.y.outer.stride[i] = p.kept[i].out;
  }
  return true;
}

bool takes_packs(const ReducePlan& p, const void* data, int pack, int element_size) {
  if (p.outs * p.count == 0 || (p.columns ? p.kept_rank : p.reduced_rank) == 0) return false;
  const ReduceAxis* inner = p.columns ? &p.kept[p.kept_rank - 1] : &p.reduced[p.reduced_rank - 1];
  // The last pack of a contiguous row may be incomplete.
  const bool whole = inner->size % pack == 0 || (!p.columns && p.reduced_rank == 1);
  bool fits = inner->in == 1 && inner->size >= pack && whole &&
              reinterpret_cast<std::uintptr_t>(data) % (static_cast<std::size_t>(pack) * element_size) == 0;
  for (int a = 0; a < p.kept_rank; ++a) fits = fits && (p.kept + a == inner || p.kept[a].in % pack == 0);
  for (int a = 0; a < p.reduced_rank; ++a)
    fits = fits && (p.reduced + a == inner || p.reduced[a].in % pack == 0);
  return fits;
}

RowOrder row_order(const Arg& x, const Arg& y, const ReduceAttrs& reduce, bool in_packs, const Gpu& gpu) {
  const ReducePlan p(x.layout, y.layout, reduce.axes, reduce.keepdim, false, gpu);
  RowOrder order{row_group(p.count / p.splits), 1, RowOrder::in_lanes, p.splits, row_group(p.splits)};
  if (!in_packs || !is_float(x.dtype)) return order;
  with_float(x.dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    using Row = ReducedRow<S>;
    // Packs must divide the row, because otherwise the last piece would contain an incomplete pack.
    if (takes_packs(p, nullptr, pack_of<S>, sizeof(S)) && p.count % pack_of<S> == 0) order.pack = pack_of<S>;
    HeldReduction a{};
    if (is_held<S>(p, nullptr, a))
      order = {static_cast<int>(Teams(a.n, Row::per_thread, false).block.x), pack_of<S>, RowOrder::by_packs};
  });
  return order;
}

}  // namespace tg::cuda
