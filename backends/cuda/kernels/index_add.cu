// index_add and scatter_add. Each addition has a destination (key) and a source (position). A stable sort
// orders them by key, and the sorted list is split into chunks of a fixed length. A thread sums a chunk's
// sources for one unit of a slice. If one chunk contains all entries of a key, the sum is added directly to
// out. Otherwise each chunk has a partial sum, and a second kernel adds these sums. All sums are in the
// compute type, in an order that depends only on the shapes. If there are few slices, they are added without
// a sort (add_few).
#include <cub/device/device_radix_sort.cuh>
#include <optional>

#include "backends/cuda/kernels/index_add.cuh"
#include "ops/index.h"

namespace tg::cuda {

namespace {

// ---- keys and positions ----

// For index_add, the key of position j is indices[j]. A key out of range becomes `limit` and is skipped.
__global__ void __launch_bounds__(threads_per_block)
    find_rows(Indices indices, const __grid_constant__ Region<1> number, i64 limit, Key* keys,
              unsigned* positions, Faults faults) {
  begin_early();
  const unsigned j = thread_number<unsigned>();
  if (j >= static_cast<unsigned>(number.numel)) return;
  const i64 index = indices[offset_in(number, j)];
  keys[j] = faults.check_index(index, limit, static_cast<i64>(j)) ? static_cast<Key>(index)
                                                                  : static_cast<Key>(limit);
  positions[j] = static_cast<unsigned>(j);
}

// For scatter_add, the key is the row-major number of element [a, indices[a, b, c], c] of out. `places`
// returns the offset of an index, and the offset of [a, 0, c] in out.
__global__ void __launch_bounds__(threads_per_block)
    find_places(Indices indices, const __grid_constant__ Region<2> places, i64 size, i64 step, i64 limit,
                Key* keys, unsigned* positions, Faults faults) {
  begin_early();
  const unsigned i = thread_number<unsigned>();
  if (i >= static_cast<unsigned>(places.numel)) return;
  i64 at[2];
  places.offsets(i, at);
  const i64 index = indices[at[0]];
  keys[i] =
      static_cast<Key>(faults.check_index(index, size, static_cast<i64>(i)) ? at[1] + index * step : limit);
  positions[i] = static_cast<unsigned>(i);
}

// The additions of a call, unsorted and sorted.
struct Additions {
  Key *keys, *sorted_keys;       // [count]
  unsigned *positions, *sorted;  // [count]
  std::byte* temporary;
  std::size_t temporary_bytes, bytes;

  Additions(i64 count, i64 limit, std::byte* memory) : bytes(0) {
    const auto n = static_cast<std::size_t>(count);
    const auto take = [&](std::size_t size) {
      std::byte* at = memory ? memory + bytes : nullptr;
      bytes += (size + 255) / 256 * 256;
      return at;
    };
    keys = reinterpret_cast<Key*>(take(n * sizeof(Key)));
    sorted_keys = reinterpret_cast<Key*>(take(n * sizeof(Key)));
    positions = reinterpret_cast<unsigned*>(take(n * sizeof(unsigned)));
    sorted = reinterpret_cast<unsigned*>(take(n * sizeof(unsigned)));
    temporary_bytes = 0;
    sort(count, limit, nullptr, nullptr);
    temporary = take(temporary_bytes);
  }
  // If memory is null, only computes the required size.
  void sort(i64 count, i64 limit, void* memory, cudaStream_t stream) {
    int bits = 1;
    while (bits < 63 && limit >> bits != 0) ++bits;
    cub::DeviceRadixSort::SortPairs(memory, temporary_bytes, keys, sorted_keys, positions, sorted,
                                    static_cast<int>(count), 0, bits, stream);
  }
};

i64 count_of(const Call& c) {
  return c.in[1].layout.numel();
}

// ---- the two ops as sums ----

struct Problem {
  Sums sums;
  i64 count, limit;
  int v;
};

Problem rows_problem(const Call& c) {
  const Arg &x = c.in[0], &indices = c.in[1], &src = c.in[2], &out = c.out[0];
  const int axis = static_cast<int>(c.attrs->as<AxisAttrs>().axis);
  // If axis a of x follows the indexed axis, it is axis a + more of src.
  const int more = indices.layout.rank() - 1;
  Problem p{};
  p.count = count_of(c), p.limit = x.layout.shape[axis];
  Sums& m = p.sums;
  for (int a = 0; a < x.layout.rank(); ++a)
    if (a != axis)
      m.columns.axis(x.layout.shape[a], {out.layout.strides[a], src.layout.strides[a < axis ? a : a + more]});
  for (int a = axis; a <= axis + more; ++a) m.number.axis(src.layout.shape[a], {src.layout.strides[a]});
  m.step = out.layout.strides[axis];
  const std::size_t bytes = size_of(x.dtype);
  p.v = m.columns.vector(sums_unit(x.dtype), {bytes, bytes}, {out.data, src.data}, m.step);
  for (int a = 0; a < m.number.rank; ++a)
    if (m.number.stride[a][0] % p.v != 0) p.v = 1;
  if (p.v != sums_unit(x.dtype)) p.v = 1;
  return p;
}

Problem places_problem(const Call& c) {
  Problem p{};
  p.count = count_of(c), p.limit = c.out[0].layout.numel(), p.v = 1;
  p.sums.number = region_of(c.in[2].layout);
  p.sums.step = 1;
  return p;
}

void add_up(const Stream& s, const Call& c, Problem& p, Additions& a) {
  Sums& m = p.sums;
  if (p.count == 0 || m.columns.numel == 0 || p.limit == 0) return;
  a.sort(p.count, p.limit, a.temporary, s.stream);
  m.keys = a.sorted_keys, m.positions = a.sorted, m.limit = static_cast<Key>(p.limit), m.count = p.count;
  m.cut(p.v);
  sum_up(s, c.out[0], c.in[2], m, p.v, s.workspace + a.bytes);
}

// Returns the parameters of add_few. The slices must be equally spaced. They must also be so few that a scan
// of all indices for each key is faster than a sort.
std::optional<FewSlices> few_slices(const Call& c, const Problem& p) {
  const Region<1> places = region_of(c.in[1].layout);
  const Sums& m = p.sums;
  if (p.count > most_few || p.count * p.limit > i64{1} << 20 || m.columns.numel > i64{32} * 65535 ||
      places.rank > 1 || m.number.rank > 1 || m.columns.rank > 1)
    return std::nullopt;
  const auto step = [](const auto& r, int operand) { return r.rank > 0 ? r.stride[0][operand] : 0; };
  return FewSlices{static_cast<int>(p.count), p.limit,           m.columns.numel,    m.step,
                   step(places, 0),           step(m.number, 0), step(m.columns, 0), step(m.columns, 1)};
}

void launch_rows(const Stream& s, const Call& c) {
  const Arg &x = c.in[0], &out = c.out[0];
  if (out.data != x.data) copy(s, out, x);
  Problem p = rows_problem(c);
  if (p.count == 0) return;
  if (const auto few = few_slices(c, p)) return add_few(s, c.in[1], c.in[2], out, *few);
  Additions a(p.count, p.limit, s.workspace);
  launch_threads(s, p.count, find_rows, Indices(c.in[1]), region_of(c.in[1].layout), p.limit, a.keys,
                 a.positions, s.faults);
  add_up(s, c, p, a);
}

void launch_places(const Stream& s, const Call& c) {
  const Arg &x = c.in[0], &indices = c.in[1], &src = c.in[2], &out = c.out[0];
  const int axis = static_cast<int>(c.attrs->as<AxisAttrs>().axis);
  if (out.data != x.data) copy(s, out, x);
  if (indices.layout.shape[axis] == 1) return add_single(s, indices, src, out, axis);
  Problem p = places_problem(c);
  if (p.count == 0) return;
  Region<2> places;
  for (int a = 0; a < indices.layout.rank(); ++a)
    places.axis(indices.layout.shape[a], {indices.layout.strides[a], a == axis ? 0 : out.layout.strides[a]});
  Additions a(p.count, p.limit, s.workspace);
  launch_threads(s, p.count, find_places, Indices(indices), places, out.layout.shape[axis],
                 out.layout.strides[axis], p.limit, a.keys, a.positions, s.faults);
  add_up(s, c, p, a);
}

void check_count(const Call& c) {
  if (count_of(c) > INT_MAX)
    throw DeviceError(std::to_string(count_of(c)) + " indices: expected at most 2^31 - 1");
}

std::size_t workspace_of(Problem p, DType dtype) {
  if (p.count == 0) return 0;
  p.sums.count = p.count;
  p.sums.cut(p.v);
  return Additions(p.count, p.limit, nullptr).bytes + p.sums.partial_bytes(dtype, p.v);
}
// Addresses are not known yet. The size is therefore the larger of two sizes: for whole units and for single
// elements.
std::size_t workspace_rows(const Call& c) {
  check_count(c);
  Problem p = rows_problem(c), single = p;
  single.v = 1;
  return std::max(workspace_of(p, c.out[0].dtype), workspace_of(single, c.out[0].dtype));
}
std::size_t workspace_places(const Call& c) {
  check_count(c);
  const int axis = static_cast<int>(c.attrs->as<AxisAttrs>().axis);
  return c.in[1].layout.shape[axis] == 1 ? 0 : workspace_of(places_problem(c), c.out[0].dtype);
}

}  // namespace

extern const Kernel index_add_kernel{&launch_rows, &workspace_rows};
extern const Kernel scatter_add_kernel{&launch_places, &workspace_places};

}  // namespace tg::cuda
