// index_assign: out = x, then out[p, indices[j], q] = src[p, j, q] for every j whose index is not −1.
#include "backends/cuda/kernels/region.cuh"
#include "ops/index.h"

namespace tg::cuda {

namespace {

struct Assignment {
  Indices indices;
  Region<2> number;  // j: where index j is among the indices, and its slice in src
  Region<2> slice;   // p and q: in out where the index is 0, and in src where j is 0
  i64 size, step;    // of the indexed axis of out
  Faults faults;

  __device__ i64 index_of(unsigned j, i64 (&at)[2]) const {
    number.offsets(j, at);
    return indices[at[0]];
  }
};

// A block has some of slice j = blockIdx.x, and looks whether a later one goes to the same place: they are
// few.
template <class U>
__global__ void __launch_bounds__(threads_per_block)
    assign(U* out, const U* src, const __grid_constant__ Assignment m) {
  begin_early();
  const unsigned j = blockIdx.x, count = static_cast<unsigned>(m.number.numel);
  i64 at[2], later[2];
  const i64 index = m.index_of(j, at);
  if (index == -1) return;
  if (!is_within(index, m.size)) {
    if (threadIdx.x == 0 && blockIdx.y == 0) m.faults.check_index(index, m.size, j);
    return;
  }
  bool again = false;
  for (unsigned k = j + 1 + threadIdx.x; k < count; k += blockDim.x) again |= m.index_of(k, later) == index;
  if (__syncthreads_or(again)) return;
  const unsigned all = static_cast<unsigned>(m.slice.numel), step = gridDim.y * blockDim.x;
  for (unsigned i = blockIdx.y * blockDim.x + threadIdx.x; i < all; i += step) {
    i64 place[2];
    m.slice.offsets(i, place);
    out[place[0] + index * m.step] = src[place[1] + at[1]];
  }
}

void launch_index_assign(const Stream& s, const Call& c) {
  const Arg &x = c.in[0], &indices = c.in[1], &src = c.in[2], &out = c.out[0];
  if (out.data != x.data) copy(s, out, x);
  if (src.layout.numel() == 0) return;
  const int axis = static_cast<int>(c.attrs->as<AxisAttrs>().axis);
  const int more = indices.layout.rank() - 1;  // axis a of x is axis a + more of src, after the indexed one
  Assignment m{Indices(indices), {}, {}, x.layout.shape[axis], out.layout.strides[axis], s.faults};
  for (int a = 0; a <= more; ++a)
    m.number.axis(indices.layout.shape[a], {indices.layout.strides[a], src.layout.strides[axis + a]});
  for (int a = 0; a < x.layout.rank(); ++a)
    if (a != axis)
      m.slice.axis(x.layout.shape[a], {out.layout.strides[a], src.layout.strides[a < axis ? a : a + more]});
  const std::size_t bytes = size_of(x.dtype);
  int v = m.slice.vector(static_cast<int>(16 / bytes), {bytes, bytes}, {out.data, src.data}, m.step);
  for (int a = 0; a < m.number.rank; ++a)
    while (m.number.stride[a][1] % v != 0) v /= 2;
  for (int a = 0; a < m.number.rank; ++a) m.number.stride[a][1] /= v;
  m.slice.group(v);
  m.step /= v;
  const unsigned parts = std::min(blocks_for(m.slice.numel, threads_per_block), 64u);
  with_unit(bytes * static_cast<std::size_t>(v), [&](auto* unit) {
    using U = pointee_t<decltype(unit)>;
    launch_early(s, {dim3(static_cast<unsigned>(m.number.numel), parts), threads_per_block}, assign<U>,
                 reinterpret_cast<U*>(out.data), reinterpret_cast<const U*>(src.data), m);
  });
}

// Offsets and places in a slice are counted in 32 bits.
std::shared_ptr<const void> plan_index_assign(const Call& c) {
  const i64 count = c.in[1].layout.numel();
  if (count > INT_MAX) throw DeviceError(std::to_string(count) + " indices: expected at most 2^31 - 1");
  if (count > 0 && c.in[2].layout.numel() / count > INT_MAX)
    throw DeviceError("a slice of more than 2^31 - 1 elements");
  return nullptr;
}

}  // namespace

extern const Kernel index_assign_kernel{&launch_index_assign, nullptr, &plan_index_assign};

}  // namespace tg::cuda
