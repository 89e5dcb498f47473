// scatter_add: out = x, then out[a, indices[a, b, c], c] += src[a, b, c] in the order of b. Each line of
// `out` along the axis is summed by one thread. Floats are summed in f64 and rounded once.
#include "backends/cpu/kernels/lines.h"
#include "backends/cpu/kernels/strided.h"
#include "ops/index.h"

namespace tg::cpu::TG_ISA {

namespace {

constexpr i64 widest = 16;                  // adjacent lines summed together
constexpr i64 block = piece_size(256, 16);  // elements added to one line at a time

Lines lines_of(const Call& call) {
  return {call.out[0].layout, static_cast<int>(call.attrs->as<AxisAttrs>().axis), widest};
}

template <class C>
void add_all(Worker& w, const Call& call) {
  const Arg &x = call.in[0], &indices = call.in[1], &src = call.in[2], &out = call.out[0];
  const Lines lines = lines_of(call);
  const int axis = lines.axis;
  const i64 size = static_cast<i64>(size_of(x.dtype)), index_size = static_cast<i64>(size_of(indices.dtype));
  const i64 bound = lines.length, added = indices.layout.shape[axis];
  const LoadFn load = block_load(x.dtype, dtype_of<C>);
  const StoreFn store = block_store(dtype_of<C>, x.dtype);
  C* total = reinterpret_cast<C*>(w.scratch);  // [length, lines]
  lines.each(w, [&](i64 group) {
    const i64 n = lines.lines(group);
    i64 reached = n;  // number of lines in the indices
    i64 x_at = 0, out_at = 0, src_at = 0, index_at = 0, number = 0;
    lines.for_index(group, [&](int a, i64 i) {
      const i64 there = indices.layout.shape[a] - i;
      if (there <= 0)
        reached = 0;
      else if (a == lines.run && there < reached)
        reached = there;
      x_at += i * x.layout.strides[a];
      out_at += i * out.layout.strides[a];
      src_at += i * src.layout.strides[a];
      index_at += i * indices.layout.strides[a];
      i64 step = 1;  // stride in the row-major numbering of the indices
      for (int b = a + 1; b < indices.layout.rank(); ++b) step *= indices.layout.shape[b];
      number += i * step;
    });
    // Copies data between memory and the block, either whole lines or rows with one element per line.
    const auto move = [&](auto&& f, std::byte* at, const Layout& l) {
      const i64 step = l.strides[axis], neighbour = lines.run_step(l);
      if (lines.run < 0)
        f(at, total, step, bound);
      else
        for (i64 t = 0; t < bound; ++t) f(at + t * step * size, total + t * n, neighbour, n);
    };
    move([&](std::byte* at, C* to, i64 step, i64 many) { load(to, at, step, many); }, x.data + x_at * size,
         x.layout);
    i64 row = 1;  // stride in indices along the axis
    for (int b = axis + 1; b < indices.layout.rank(); ++b) row *= indices.layout.shape[b];
    // Addends are processed in blocks along the line, or in rows across the lines.
    const bool single = lines.run < 0;
    const i64 src_step = single ? src.layout.strides[axis] : lines.run_step(src.layout);
    const i64 index_step = single ? indices.layout.strides[axis] : lines.run_step(indices.layout);
    for (i64 b = 0, many; b < added && reached > 0; b += single ? many : 1) {
      many = !single ? reached : added - b < block ? added - b : block;
      C add[block];
      load(add, src.data + (src_at + b * src.layout.strides[axis]) * size, src_step, many);
      const i64 first = index_at + b * indices.layout.strides[axis];
      for (i64 i = 0; i < many; ++i) {
        const i64 index = read_index(indices, (first + i * index_step) * index_size);
        if (w.check_index(index, bound, number + b * row + i)) total[index * n + (single ? 0 : i)] += add[i];
      }
    }
    move([&](std::byte* at, C* from, i64 step, i64 many) { store(at, from, step, many); },
         out.data + out_at * size, out.layout);
  });
}

void run(Worker& w, const Call& call) {
  if (call.out[0].layout.numel() == 0) {
    // The axis is empty, so every index is out of range.
    if (call.in[1].layout.numel() > 0) w.check_index(read_index(call.in[1], 0), 0, 0);
    return;
  }
  is_float(call.out[0].dtype) ? add_all<double>(w, call) : add_all<i64>(w, call);
}

Scratch scratch(const Call& call, int) {
  const Lines lines = lines_of(call);
  return {static_cast<std::size_t>(lines.length * lines.width) * sizeof(double), 0};
}

}  // namespace

extern const Kernel scatter_add_kernel{&run, &scratch};

}  // namespace tg::cpu::TG_ISA
