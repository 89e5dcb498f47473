// index_assign for each tensor of a list: out = x, then out[p, indices[j], q] = src[p, j, q] for every j with
// an index other than −1.
#include "backends/cuda/kernels/region.cuh"
#include "ops/index.h"

namespace tg::cuda {

namespace {

struct Assignment {
  Indices indices;
  Region<2> number;  // j: offset of index j among the indices, and of its slice in src
  Region<2> slice;   // p and q: offset in out at index 0, and in src at j = 0
  i64 size, step;    // size and stride of the indexed axis of out
  Faults faults;

  __device__ i64 index_of(unsigned j, i64 (&at)[2]) const {
    number.offsets(j, at);
    return indices[at[0]];
  }
};

// Number of tensors that a launch writes. It is 2 because keys and values are written to the same rows of a
// cache.
constexpr int assigned_at_once = 2;
template <class U>
struct Assignments {
  U* out[assigned_at_once];
  const U* src[assigned_at_once];
  Assignment of[assigned_at_once];
  bool constant_indices;  // no step writes them: they are read before the previous kernel has finished
};

// A block copies a part of slice j = blockIdx.x of tensor blockIdx.z. First it checks whether a later slice
// has the same index. This is fast because there are few slices.
template <class U>
__global__ void __launch_bounds__(threads_per_block) assign(const __grid_constant__ Assignments<U> all) {
  let_next_kernel_begin();
  if (!all.constant_indices) wait_for_kernel_before();
  const Assignment& m = all.of[blockIdx.z];
  U* const out = all.out[blockIdx.z];
  const U* const src = all.src[blockIdx.z];
  const unsigned j = blockIdx.x, count = static_cast<unsigned>(m.number.numel);
  i64 at[2], later[2];
  const i64 index = m.index_of(j, at);
  bool again = false;
  for (unsigned k = j + 1 + threadIdx.x; k < count; k += blockDim.x) again |= m.index_of(k, later) == index;
  again = __syncthreads_or(again);
  if (all.constant_indices) wait_for_kernel_before();
  if (index == -1) return;
  if (!is_within(index, m.size)) {
    if (threadIdx.x == 0 && blockIdx.y == 0) m.faults.check_index(index, m.size, j);
    return;
  }
  if (again) return;
  const unsigned all_of_it = static_cast<unsigned>(m.slice.numel), step = gridDim.y * blockDim.x;
  for (unsigned i = blockIdx.y * blockDim.x + threadIdx.x; i < all_of_it; i += step) {
    i64 place[2];
    m.slice.offsets(i, place);
    out[place[0] + index * m.step] = src[place[1] + at[1]];
  }
}

Assignment assignment(const Stream& s, const Arg& indices, const Arg& src, const Arg& out, int axis) {
  // If axis a of x follows the indexed axis, it is axis a + more of src.
  const int more = indices.layout.rank() - 1;
  Assignment m{Indices(indices), {}, {}, out.layout.shape[axis], out.layout.strides[axis], s.faults};
  for (int a = 0; a <= more; ++a)
    m.number.axis(indices.layout.shape[a], {indices.layout.strides[a], src.layout.strides[axis + a]});
  for (int a = 0; a < out.layout.rank(); ++a)
    if (a != axis)
      m.slice.axis(out.layout.shape[a], {out.layout.strides[a], src.layout.strides[a < axis ? a : a + more]});
  return m;
}

// Returns the number of elements that one access can copy.
int vector_of(const Assignment& m, const Arg& src, const Arg& out) {
  const std::size_t bytes = size_of(out.dtype);
  int v = m.slice.vector(static_cast<int>(16 / bytes), {bytes, bytes}, {out.data, src.data}, m.step);
  for (int a = 0; a < m.number.rank; ++a)
    while (m.number.stride[a][1] % v != 0) v /= 2;
  return v;
}

void group(Assignment& m, int v) {
  for (int a = 0; a < m.number.rank; ++a) m.number.stride[a][1] /= v;
  m.slice.group(v);
  m.step /= v;
}

// Launches the assignments of `count` tensors, starting at `first`.
void launch_assignments(const Stream& s, const Call& c, std::size_t first, int count) {
  const Arg& indices = c.in.back();
  const int axis = static_cast<int>(c.attrs->as<AxisAttrs>().axis);
  Assignment m[assigned_at_once]{{Indices(indices)}, {Indices(indices)}};
  int v = 16;
  for (int k = 0; k < count; ++k) {
    const Arg &src = c.in[2 * (first + k) + 1], &out = c.out[first + k];
    m[k] = assignment(s, indices, src, out, axis);
    v = std::min(v, vector_of(m[k], src, out));
  }
  i64 most = 0;
  for (int k = 0; k < count; ++k) {
    group(m[k], v);
    most = std::max(most, m[k].slice.numel);
  }
  const dim3 grid(static_cast<unsigned>(m[0].number.numel),
                  std::min(blocks_for(most, threads_per_block), 64u), static_cast<unsigned>(count));
  with_unit(size_of(c.out[0].dtype) * static_cast<std::size_t>(v), [&](auto* unit) {
    using U = pointee_t<decltype(unit)>;
    Assignments<U> all{{}, {}, {m[0], m[1]}, is_constant(indices, c)};
    for (int k = 0; k < count; ++k) {
      all.out[k] = reinterpret_cast<U*>(c.out[first + k].data);
      all.src[k] = reinterpret_cast<const U*>(c.in[2 * (first + k) + 1].data);
    }
    launch_early(s, {grid, threads_per_block}, assign<U>, all);
  });
}

void launch_index_assign(const Stream& s, const Call& c) {
  for (std::size_t i = 0; i < c.out.size(); ++i)
    if (c.out[i].data != c.in[2 * i].data) copy(s, c.out[i], c.in[2 * i]);
  if (c.in.back().layout.numel() == 0) return;
  const auto is_empty = [&](std::size_t i) { return c.in[2 * i + 1].layout.numel() == 0; };
  for (std::size_t i = 0; i < c.out.size(); ++i) {
    if (is_empty(i)) continue;
    const bool two = i + 1 < c.out.size() && !is_empty(i + 1);
    launch_assignments(s, c, i, two ? 2 : 1);
    i += two;
  }
}

// Returns 0, because no workspace is needed. Checks that offsets and positions in a slice fit 32 bits.
std::size_t workspace_of_assign(const Call& c) {
  const i64 count = c.in.back().layout.numel();
  if (count > INT_MAX) throw DeviceError(std::to_string(count) + " indices: expected at most 2^31 - 1");
  for (std::size_t i = 0; i < c.out.size(); ++i)
    if (count > 0 && c.in[2 * i + 1].layout.numel() / count > INT_MAX)
      throw DeviceError("a slice of more than 2^31 - 1 elements");
  return 0;
}

}  // namespace

extern const Kernel index_assign_kernel{&launch_index_assign, &workspace_of_assign};

}  // namespace tg::cuda
