// embedding, index_select and gather: elements and slices selected by index.
#include "backends/cuda/kernels/region.cuh"
#include "ops/index.h"

namespace tg::cuda {

namespace {

struct Selection {
  Indices indices;
  Region<1> number;  // j: offset of index j among the indices
  Region<1> before;  // p: the axes of x before the indexed one
  Region<1> slice;   // q: the axes after it
  i64 size, step;    // size and stride of the indexed axis
  i64 numel;         // number of units of out
  Faults faults;
  bool constant_indices;  // no step writes them: they are read before the previous kernel has finished
};

// out[p, j, q] = x[p, indices[j], q], one unit of q at a time.
template <class U, class I>
__global__ void __launch_bounds__(threads_per_block)
    select(U* out, const U* x, const __grid_constant__ Selection m) {
  let_next_kernel_begin();
  if (!m.constant_indices) wait_for_kernel_before();
  const I i = thread_number<I>();
  const bool is_inside = i < static_cast<I>(m.numel);
  const I slice = static_cast<I>(m.slice.numel), count = static_cast<I>(m.number.numel);
  const I row = i / slice, q = i - row * slice;
  const I p = m.before.rank > 0 ? row / count : 0, j = row - p * count;
  const i64 index = is_inside ? m.indices[offset_in(m.number, j)] : 0;
  if (m.constant_indices) wait_for_kernel_before();
  if (!is_inside) return;
  if (is_within(index, m.size))
    out[i] = x[offset_in(m.before, p) + index * m.step + offset_in(m.slice, q)];
  else if (q == 0)
    m.faults.check_index(index, m.size, static_cast<i64>(j));
}

void launch_select(const Stream& s, const Call& c) {
  const Arg &x = c.in[0], &indices = c.in[1], &out = c.out[0];
  if (out.layout.numel() == 0) return;
  const int axis = static_cast<int>(c.attrs->as<AxisAttrs>().axis);
  Selection m{Indices(indices),
              region_of(indices.layout),
              {},
              {},
              x.layout.shape[axis],
              x.layout.strides[axis],
              out.layout.numel(),
              s.faults,
              is_constant(indices, c)};
  for (int a = 0; a < axis; ++a) m.before.axis(x.layout.shape[a], {x.layout.strides[a]});
  for (int a = axis + 1; a < x.layout.rank(); ++a) m.slice.axis(x.layout.shape[a], {x.layout.strides[a]});
  const std::size_t bytes = size_of(x.dtype);
  int v = m.slice.vector(static_cast<int>(16 / bytes), {bytes}, {x.data}, m.step);
  for (int a = 0; a < m.before.rank; ++a)
    while (m.before.stride[a][0] % v != 0) v /= 2;
  for (int a = 0; a < m.before.rank; ++a) m.before.stride[a][0] /= v;
  m.slice.group(v);
  m.step /= v;
  m.numel /= v;
  with_count(m.numel, [&](auto* counter) {
    using I = pointee_t<decltype(counter)>;
    with_unit(bytes * static_cast<std::size_t>(v), [&](auto* unit) {
      using U = pointee_t<decltype(unit)>;
      launch_threads(s, m.numel, select<U, I>, reinterpret_cast<U*>(out.data),
                     reinterpret_cast<const U*>(x.data), m);
    });
  });
}

struct Gathering {
  Indices indices;
  Region<2> places;  // offsets in the indices, and in x at index 0
  i64 size, step;    // size and stride of the indexed axis
  Faults faults;
};

// out[a, b, c] = x[a, indices[a, b, c], c]
template <class E, class I>
__global__ void __launch_bounds__(threads_per_block)
    gather(E* out, const E* x, const __grid_constant__ Gathering m) {
  begin_early();
  const I i = thread_number<I>();
  if (i >= static_cast<I>(m.places.numel)) return;
  i64 at[2];
  m.places.offsets(i, at);
  const i64 index = m.indices[at[0]];
  if (is_within(index, m.size))
    out[i] = x[at[1] + index * m.step];
  else
    m.faults.check_index(index, m.size, static_cast<i64>(i));
}

void launch_gather(const Stream& s, const Call& c) {
  const Arg &x = c.in[0], &indices = c.in[1], &out = c.out[0];
  if (out.layout.numel() == 0) return;
  const int axis = static_cast<int>(c.attrs->as<AxisAttrs>().axis);
  Gathering m{Indices(indices), {}, x.layout.shape[axis], x.layout.strides[axis], s.faults};
  for (int a = 0; a < out.layout.rank(); ++a)
    m.places.axis(out.layout.shape[a], {indices.layout.strides[a], a == axis ? 0 : x.layout.strides[a]});
  with_count(m.places.numel, [&](auto* counter) {
    using I = pointee_t<decltype(counter)>;
    with_element(size_of(x.dtype), [&](auto* element) {
      using E = pointee_t<decltype(element)>;
      launch_threads(s, m.places.numel, gather<E, I>, reinterpret_cast<E*>(out.data),
                     reinterpret_cast<const E*>(x.data), m);
    });
  });
}

}  // namespace

extern const Kernel embedding_kernel{&launch_select};
extern const Kernel index_select_kernel{&launch_select};
extern const Kernel gather_kernel{&launch_gather};

}  // namespace tg::cuda
