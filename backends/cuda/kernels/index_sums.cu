#include <climits>

#include "backends/cuda/kernels/index_add.cuh"

namespace tg::cuda {

namespace {

// One thread computes one unit of one chunk. Sums of keys that begin and end in the chunk are added to out.
// Other sums are stored in `partial`, [chunks, 2, units]. The sum of a key that began in an earlier chunk has
// index 0. The sum of a key that begins here and continues in the next chunk has index 1.
template <class S, int V, class I>
__global__ void __launch_bounds__(threads_per_block)
    sum_chunks(Unit<S, V>* out, const Unit<S, V>* src, Unit<compute_t<S>, V>* partial,
               const __grid_constant__ Sums m) {
  begin_early();
  using C = compute_t<S>;
  constexpr int ahead = 4;  // number of slices read at a time
  const I n = thread_number<I>(), units = static_cast<I>(m.columns.numel);
  if (n >= units * static_cast<I>(m.chunks)) return;
  const I chunk = n / units, unit = n - chunk * units;
  i64 at[2];
  m.columns.offsets(unit, at);
  const i64 begin = chunk * m.chunk, end = begin + m.chunk < m.count ? begin + m.chunk : m.count;
  Key key = m.keys[begin];
  bool open = begin > 0 && m.keys[begin - 1] == key;  // the key began in an earlier chunk
  Unit<C, V> total{};
  for (i64 k = begin; k < end; k += ahead) {
    Unit<S, V> slice[ahead];
    Key next[ahead];
#pragma unroll
    for (int a = 0; a < ahead; ++a) {
      if (k + a >= end) break;
      slice[a] = src[at[1] + offset_in(m.number, m.positions[k + a])];
      next[a] = k + a + 1 < m.count ? m.keys[k + a + 1] : ULLONG_MAX;
    }
#pragma unroll
    for (int a = 0; a < ahead; ++a) {
      if (k + a >= end) break;
      for (int e = 0; e < V; ++e) total.at[e] += widen(slice[a].at[e]);
      const bool goes_on = next[a] == key;
      if (goes_on && k + a + 1 < end) continue;
      if (key < m.limit) {
        if (open || goes_on) {
          partial[(static_cast<i64>(chunk) * 2 + !open) * units + unit] = total;
        } else {
          Unit<S, V>& to = out[at[0] + static_cast<i64>(key) * m.step];
          Unit<S, V> value = to;
          for (int e = 0; e < V; ++e) value.at[e] = narrow<S>(widen(value.at[e]) + total.at[e]);
          to = value;
        }
      }
      total = {};
      open = false;
      key = next[a];
    }
  }
}

// One block has one chunk and `across` elements of a slice. If a key begins in the chunk and continues in the
// next chunk, the block adds the partial sums of this key. The chunks are distributed over threadIdx.y.
template <class S>
__global__ void __launch_bounds__(threads_per_block)
    sum_partials(S* out, const compute_t<S>* partial, const __grid_constant__ Sums m, int v, int across) {
  begin_early();
  using C = std::conditional_t<std::is_same_v<compute_t<S>, float>, double, compute_t<S>>;
  __shared__ C part[threads_per_block];
  const i64 chunk = blockIdx.x, begin = chunk * m.chunk, next = begin + m.chunk;
  if (next >= m.count) return;
  const Key key = m.keys[next - 1];
  if (key >= m.limit || m.keys[next] != key || (begin > 0 && m.keys[begin - 1] == key)) return;
  i64 low = next, high = m.count;  // the first entry with a larger key is in (low, high]
  while (high - low > 1) {
    const i64 middle = low + (high - low) / 2;
    (m.keys[middle] == key ? low : high) = middle;
  }
  const i64 last = low / m.chunk, width = m.columns.numel * v;
  const int x = threadIdx.x % across, y = threadIdx.x / across, rows = threads_per_block / across;
  const i64 element = static_cast<i64>(blockIdx.y) * across + x;
  C total = 0;
  if (element < width) {
    if (y == 0) total = partial[(chunk * 2 + 1) * width + element];
#pragma unroll 4
    for (i64 c = chunk + 1 + y; c <= last; c += rows) total += partial[c * 2 * width + element];
  }
  part[threadIdx.x] = total;
  for (int half = rows / 2; half > 0; half /= 2) {
    __syncthreads();
    if (y < half) part[threadIdx.x] += part[threadIdx.x + half * across];
  }
  if (y > 0 || element >= width) return;
  i64 at[2];
  m.columns.offsets(static_cast<unsigned>(element / v), at);
  S& to = out[(at[0] + static_cast<i64>(key) * m.step) * v + element % v];
  to = narrow<S>(static_cast<C>(widen(to)) + part[threadIdx.x]);
}

template <class S, int V>
void sum_as(const Stream& s, const Arg& out, const Arg& src, const Sums& m, std::byte* partial) {
  const i64 threads = m.columns.numel * m.chunks;
  with_count(threads, [&](auto* counter) {
    using I = pointee_t<decltype(counter)>;
    launch_threads(s, threads, sum_chunks<S, V, I>, reinterpret_cast<Unit<S, V>*>(out.data),
                   reinterpret_cast<const Unit<S, V>*>(src.data),
                   reinterpret_cast<Unit<compute_t<S>, V>*>(partial), m);
  });
}

// out[…] += src for each element of src. `places` contains offsets in indices, in src, and in out at index 0.
template <class S, class I>
__global__ void __launch_bounds__(threads_per_block)
    add_each(S* out, const S* src, Indices indices, const __grid_constant__ Region<3> places, i64 size,
             i64 step, Faults faults) {
  begin_early();
  const I i = thread_number<I>();
  if (i >= static_cast<I>(places.numel)) return;
  i64 at[3];
  places.offsets(i, at);
  const i64 index = indices[at[0]];
  if (!faults.check_index(index, size, static_cast<i64>(i))) return;
  S& to = out[at[2] + index * step];
  to = narrow<S>(widen(to) + widen(src[at[1]]));
}

// One warp has one key and 32 elements of a slice. It finds the positions of the key and then adds the slices
// in the order of the positions. The code is kept short because it runs once.
constexpr int few_warps = 8;
template <class S>
__global__ void __launch_bounds__(32 * few_warps)
    add_slices(S* out, const S* src, Indices indices, const __grid_constant__ FewSlices m, Faults faults) {
  begin_early();
  using C = compute_t<S>;
  __shared__ unsigned short positions[few_warps][most_few];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const i64 key = i64{blockIdx.x} * few_warps + warp, element = i64{blockIdx.y} * 32 + lane;
  int found = 0;
  constexpr int together = 4;  // number of indices that a lane loads at a time
#pragma unroll 1
  for (int first = 0; first < m.count; first += 32 * together) {
    i64 index[together];
#pragma unroll
    for (int a = 0; a < together; ++a) {
      const int j = first + 32 * a + lane;
      index[a] = j < m.count ? indices[j * m.index_step] : -1;
    }
#pragma unroll
    for (int a = 0; a < together; ++a) {
      const bool is_mine = index[a] == key;
      const unsigned mine = __ballot_sync(~0u, is_mine);
      if (is_mine)
        positions[warp][found + __popc(mine & ((1u << lane) - 1))] =
            static_cast<unsigned short>(first + 32 * a + lane);
      found += __popc(mine);
    }
  }
  __syncwarp();
  if (found > 0 && key < m.limit && element < m.columns) {
    S& to = out[key * m.step + element * m.out_column];
    const S before = to;
    src += element * m.src_column;
    C total = 0;
    constexpr int ahead = 4;  // number of elements read at a time
#pragma unroll 1
    for (int n = 0; n < found; n += ahead) {
      S x[ahead];
#pragma unroll
      for (int a = 0; a < ahead; ++a)
        if (n + a < found) x[a] = src[positions[warp][n + a] * m.src_step];
#pragma unroll
      for (int a = 0; a < ahead; ++a)
        if (n + a < found) total += widen(x[a]);
    }
    to = narrow<S>(widen(before) + total);
  }
  // One block reports indices that are out of range.
  if (blockIdx.x > 0 || blockIdx.y > 0) return;
#pragma unroll 1
  for (int j = threadIdx.x; j < m.count; j += 32 * few_warps)
    faults.check_index(indices[j * m.index_step], m.limit, j);
}

// Calls f with a null pointer of the storage type, for all dtypes except booleans.
template <class F>
void with_number(DType t, F&& f) {
  with_any(t, [&](auto* type) {
    if constexpr (!std::is_same_v<pointee_t<decltype(type)>, bool>) f(type);
  });
}

}  // namespace

void sum_up(const Stream& s, const Arg& out, const Arg& src, const Sums& m, int v, std::byte* partial) {
  with_number(out.dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    constexpr int loaded = 16 / sizeof(S), held = 32 / sizeof(compute_t<S>);
    constexpr int unit = loaded < held ? loaded : held;
    v > 1 ? sum_as<S, unit>(s, out, src, m, partial) : sum_as<S, 1>(s, out, src, m, partial);
    if (m.chunks == 1) return;
    const i64 width = m.columns.numel * v;
    int across = 1;
    while (across < 32 && across < width) across *= 2;
    const dim3 grid(static_cast<unsigned>(m.chunks), blocks_for(width, across));
    launch_early(s, {grid, threads_per_block}, sum_partials<S>, reinterpret_cast<S*>(out.data),
                 reinterpret_cast<const compute_t<S>*>(partial), m, v, across);
  });
}

void add_few(const Stream& s, const Arg& indices, const Arg& src, const Arg& out, const FewSlices& m) {
  if (m.limit == 0 || m.columns == 0) return;
  with_number(out.dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    const dim3 grid(blocks_for(m.limit, few_warps), blocks_for(m.columns, 32));
    launch_early(s, {grid, 32 * few_warps}, add_slices<S>, reinterpret_cast<S*>(out.data),
                 reinterpret_cast<const S*>(src.data), Indices(indices), m, s.faults);
  });
}

void add_single(const Stream& s, const Arg& indices, const Arg& src, const Arg& out, int axis) {
  Region<3> places;
  for (int a = 0; a < indices.layout.rank(); ++a)
    places.axis(indices.layout.shape[a],
                {indices.layout.strides[a], src.layout.strides[a], a == axis ? 0 : out.layout.strides[a]});
  if (places.numel == 0) return;
  with_number(out.dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    with_count(places.numel, [&](auto* counter) {
      using I = pointee_t<decltype(counter)>;
      launch_threads(s, places.numel, add_each<S, I>, reinterpret_cast<S*>(out.data),
                     reinterpret_cast<const S*>(src.data), Indices(indices), places, out.layout.shape[axis],
                     out.layout.strides[axis], s.faults);
    });
  });
}

}  // namespace tg::cuda
