// Kernels of concat, slice_assign and slice_at, which copy regions, and of arange.
#include "backends/cuda/kernels/region.cuh"
#include "ops/index.h"

namespace tg::cuda {

namespace {

// An index on one axis that is only known at run time, with 0 ≤ index < bound. Operand `operand` of a copy
// (0: to, 1: from) begins index·step units later.
struct Start {
  Indices index;
  i64 bound, step;
  int operand;
  Faults faults;
};

// to[i] = from[i] for each unit of the region. If U is larger than E, a single element is repeated.
template <class U, class E, class I>
__global__ void __launch_bounds__(threads_per_block)
    move(U* to, const E* from, const __grid_constant__ Region<2> r, const __grid_constant__ Start start,
         bool starts) {
  begin_early();
  const I i = thread_number<I>();
  if (starts) {
    const i64 index = start.index[0];
    if (!is_within(index, start.bound)) {
      if (i == 0) start.faults.check_index(index, start.bound, 0);
      return;
    }
    if (start.operand == 0)
      to += index * start.step;
    else
      from += index * start.step;
  }
  if (i >= static_cast<I>(r.numel)) return;
  i64 at[2];
  r.offsets(i, at);
  union {
    U unit;
    E element[sizeof(U) / sizeof(E)];
  } value;
  const E e = from[at[1]];
  for (int k = 0; k < static_cast<int>(sizeof(U) / sizeof(E)); ++k) value.element[k] = e;
  to[at[0]] = value.unit;
}

// Orders the axes so that `to` is written in ascending order. Strides are in elements.
Region<2> region(const Layout& shape, const std::int64_t* to, const std::int64_t* from) {
  int order[max_rank], n = 0;
  for (int a = 0; a < shape.rank(); ++a) {
    int at = n++;
    for (; at > 0 && to[order[at - 1]] < to[a]; --at) order[at] = order[at - 1];
    order[at] = a;
  }
  Region<2> r;
  for (int k = 0; k < n; ++k) r.axis(shape.shape[order[k]], {to[order[k]], from[order[k]]});
  return r;
}

void move_region(const Stream& s, DType dtype, Region<2> r, std::byte* to, const std::byte* from,
                 const Start* given = nullptr) {
  if (r.numel == 0 && !given) return;
  Start start = given ? *given : Start{Indices(Arg{}), 0, 0, 0, s.faults};
  const std::size_t bytes = size_of(dtype);
  const int most = static_cast<int>(16 / bytes), last = r.rank - 1;
  int v = r.vector(most, {bytes, bytes}, {to, from}, start.step);
  bool fill = false;
  if (v == 1 && r.rank > 0 && r.stride[last][1] == 0) {
    Region<2> both = r;  // the region, with `from` in the layout of `to`
    for (int a = 0; a < r.rank; ++a) both.stride[a][1] = r.stride[a][0];
    fill = both.vector(most, {bytes, bytes}, {to, to}, start.operand == 0 ? start.step : 0) == most;
    if (fill) {
      both.group(most);
      for (int a = 0; a < r.rank; ++a) both.stride[a][1] = r.stride[a][1];
      r = both;
    }
  }
  r.group(v);
  start.step /= fill && start.operand == 0 ? most : v;
  with_count(r.numel, [&](auto* counter) {
    using I = pointee_t<decltype(counter)>;
    const auto run = [&](auto* unit, auto* element) {
      using U = pointee_t<decltype(unit)>;
      using E = pointee_t<decltype(element)>;
      launch_threads(s, r.numel > 0 ? r.numel : 1, move<U, E, I>, reinterpret_cast<U*>(to),
                     reinterpret_cast<const E*>(from), r, start, given != nullptr);
    };
    if (fill)
      with_element(bytes, [&](auto* element) { run(static_cast<uint4*>(nullptr), element); });
    else
      with_unit(bytes * static_cast<std::size_t>(v), [&](auto* unit) { run(unit, unit); });
  });
}

// out[…, start_i + j, …] = in_i[…, j, …], where start_i is the sum of the sizes of all inputs before i.
void launch_concat(const Stream& s, const Call& c) {
  const Arg& out = c.out[0];
  const int axis = static_cast<int>(c.attrs->as<AxisAttrs>().axis);
  std::byte* to = out.data;
  for (const Arg& x : c.in) {
    move_region(s, x.dtype, region(x.layout, out.layout.strides.begin(), x.layout.strides.begin()), to,
                x.data);
    to += x.layout.shape[axis] * out.layout.strides[axis] * static_cast<i64>(size_of(x.dtype));
  }
}

// out = x, then out[…, start + i·step, …] = src[…, i, …]. If out shares x's memory, only the region is
// accessed.
void launch_assign(const Stream& s, const Call& c) {
  const Arg &x = c.in[0], &src = c.in[1], &out = c.out[0];
  const auto& a = c.attrs->as<SliceAssignAttrs>();
  const int axis = static_cast<int>(a.axis);
  if (out.data != x.data) copy(s, out, x);
  tg::Strides to = out.layout.strides;
  const i64 along = to[axis];
  to[axis] *= a.step;
  const Region<2> r = region(src.layout, to.begin(), src.layout.strides.begin());
  if (c.in.size() == 2)
    return move_region(s, out.dtype, r, out.data + a.start * along * static_cast<i64>(size_of(out.dtype)),
                       src.data);
  const Start start{Indices(c.in[2]), x.layout.shape[axis] - src.layout.shape[axis] + 1, along, 0, s.faults};
  move_region(s, out.dtype, r, out.data, src.data, &start);
}

// out[…, i, …] = x[…, start + i, …]
void launch_at(const Stream& s, const Call& c) {
  const Arg &x = c.in[0], &out = c.out[0];
  const int axis = static_cast<int>(c.attrs->as<SliceAtAttrs>().axis);
  const Start start{Indices(c.in[1]), x.layout.shape[axis] - out.layout.shape[axis] + 1,
                    x.layout.strides[axis], 1, s.faults};
  move_region(s, out.dtype, region(out.layout, out.layout.strides.begin(), x.layout.strides.begin()),
              out.data, x.data, &start);
}

// out[i] = start + i·step, computed in f64, or in i64 for integers.
template <class S, class C, class I>
__global__ void __launch_bounds__(threads_per_block) count(S* out, C start, C step, I n) {
  begin_early();
  const I i = thread_number<I>();
  if (i < n) out[i] = narrow<S>(start + static_cast<C>(i) * step);
}

void launch_arange(const Stream& s, const Call& c) {
  const Arg& out = c.out[0];  // one dense axis
  const auto& a = c.attrs->as<ArangeAttrs>();
  const i64 n = out.layout.numel();
  if (n == 0) return;
  with_any(out.dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    using C = std::conditional_t<std::is_same_v<compute_t<S>, i64>, i64, double>;
    with_count(n, [&](auto* counter) {
      using I = pointee_t<decltype(counter)>;
      launch_threads(s, n, count<S, C, I>, reinterpret_cast<S*>(out.data), static_cast<C>(a.start),
                     static_cast<C>(a.step), static_cast<I>(n));
    });
  });
}

}  // namespace

void copy(const Stream& s, const Arg& to, const Arg& from) {
  move_region(s, to.dtype, region(to.layout, to.layout.strides.begin(), from.layout.strides.begin()), to.data,
              from.data);
}

extern const Kernel arange_kernel{&launch_arange};
extern const Kernel concat_kernel{&launch_concat};
extern const Kernel slice_assign_kernel{&launch_assign};
extern const Kernel slice_at_kernel{&launch_at};

}  // namespace tg::cuda
