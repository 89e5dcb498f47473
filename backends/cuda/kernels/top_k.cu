// top_k: values and indices of the k largest elements of each line in descending order. Equal elements are
// ordered by index, and NaN is larger than any number. A block first finds the k-th largest element by its
// bits, eight at a time. It then collects the elements that are not below this element, and sorts them.
#include "backends/cuda/kernels/rows.cuh"
#include "ops/index.h"

namespace tg::cuda {

namespace {

// Returns unsigned integers with the same order as the values.
__device__ __forceinline__ unsigned key_of(float v) {
  if (v != v) return 0xffffffffu;
  if (v == 0) v = 0;  // -0 equals 0
  const unsigned u = __float_as_uint(v);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ unsigned long long key_of(double v) {
  if (v != v) return ~0ull;
  if (v == 0) v = 0;
  const auto u = static_cast<unsigned long long>(__double_as_longlong(v));
  return u >> 63 ? ~u : u | 1ull << 63;
}
__device__ __forceinline__ unsigned long long key_of(i64 v) {
  return static_cast<unsigned long long>(v) ^ 1ull << 63;
}

struct Entry {
  unsigned long long key;
  i64 place;
  __device__ bool before(const Entry& o) const { return key > o.key || (key == o.key && place < o.place); }
};

struct Choice {
  RowLayout x, values, places;
  DType type;
  i64 n, count, k, room;  // room: k rounded up to a power of two
  Entry* lists;           // [blocks, room], if the lists do not fit in shared memory
};

constexpr i64 most_shared = 2048;  // entries

// The key of the k-th largest element, and how many of the k elements have this key. Also states whether no
// other element has this key.
template <class K>
struct Threshold {
  K key;
  i64 equal;
  bool all;
};

template <class C, class K>
__device__ void find_threshold(const Choice& a, i64 x, Threshold<K>& t) {
  __shared__ unsigned long long counts[256];
  __shared__ K prefix;
  __shared__ i64 remaining;
  K mask = 0;
  if (threadIdx.x == 0) prefix = 0, remaining = a.k;
  for (int shift = static_cast<int>(sizeof(K)) * 8 - 8; shift >= 0; shift -= 8) {
    for (int b = threadIdx.x; b < 256; b += blockDim.x) counts[b] = 0;
    __syncthreads();
    const K so_far = prefix;
#pragma unroll 4
    for (i64 i = threadIdx.x; i < a.n; i += blockDim.x) {
      const K key = key_of(load_as<C>(a.x.data, a.type, x + i * a.x.step));
      if ((key & mask) == so_far) atomicAdd(&counts[key >> shift & 255], 1ull);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int b = 255;
      for (; b > 0 && static_cast<i64>(counts[b]) < remaining; --b) remaining -= static_cast<i64>(counts[b]);
      prefix = so_far | K(b) << shift;
      t = {prefix, remaining, static_cast<i64>(counts[b]) == remaining};
    }
    mask |= K(255) << shift;
    __syncthreads();
  }
}

// Sorts `room` entries, a power of two, by a bitonic network.
__device__ void sort(Entry* list, i64 room) {
  for (i64 run = 2; run <= room; run *= 2)
    for (i64 by = run / 2; by > 0; by /= 2) {
      for (i64 i = threadIdx.x; i < room / 2; i += blockDim.x) {
        const i64 low = i / by * by * 2 + i % by, high = low + by;
        const Entry a = list[low], b = list[high];
        if ((low & run) == 0 ? b.before(a) : a.before(b)) list[low] = b, list[high] = a;
      }
      __syncthreads();
    }
}

template <class C>
__global__ void __launch_bounds__(1024) choose(const __grid_constant__ Choice a) {
  begin_early();
  using K = decltype(key_of(C()));
  TG_DYNAMIC_SHARED(shared, 16);
  __shared__ Threshold<K> t;
  __shared__ unsigned long long taken;
  __shared__ int of_warp[32];
  Entry* list = a.lists ? a.lists + blockIdx.x * a.room : reinterpret_cast<Entry*>(shared);
  for (i64 line = blockIdx.x; line < a.count; line += gridDim.x) {
    const i64 x = a.x.offset(line);
    find_threshold<C>(a, x, t);
    if (threadIdx.x == 0) taken = 0;
    for (i64 i = a.k + threadIdx.x; i < a.room; i += blockDim.x) list[i] = {0, LLONG_MAX};
    __syncthreads();
    for (i64 i = threadIdx.x; i < a.n; i += blockDim.x) {
      const K key = key_of(load_as<C>(a.x.data, a.type, x + i * a.x.step));
      if (key > t.key || (t.all && key == t.key)) list[atomicAdd(&taken, 1ull)] = {key, i};
    }
    // Collect the first elements that equal the k-th, chunk by chunk, in the order of their indices.
    i64 seen = 0;
    for (i64 first = 0; !t.all && seen < t.equal && first < a.n; first += blockDim.x) {
      const i64 i = first + threadIdx.x;
      const bool is = i < a.n && key_of(load_as<C>(a.x.data, a.type, x + i * a.x.step)) == t.key;
      const unsigned same = __ballot_sync(0xffffffffu, is);
      if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = __popc(same);
      __syncthreads();
      i64 at = seen + __popc(same & ((1u << threadIdx.x % 32) - 1));
      for (int w = 0; w < blockDim.x / 32; ++w) {
        if (w < threadIdx.x / 32) at += of_warp[w];
        seen += of_warp[w];
      }
      if (is && at < t.equal) list[a.k - t.equal + at] = {t.key, i};
      __syncthreads();
    }
    __syncthreads();
    sort(list, a.room);
    const i64 values = a.values.offset(line), places = a.places.offset(line);
    for (i64 i = threadIdx.x; i < a.k; i += blockDim.x) {
      const i64 place = list[i].place;
      store_as(a.values.data, a.type, values + i * a.values.step,
               load_as<C>(a.x.data, a.type, x + place * a.x.step));
      static_cast<i64*>(a.places.data)[places + i * a.places.step] = place;
    }
    __syncthreads();
  }
}

Choice choice_of(const Call& c) {
  const auto& attrs = c.attrs->as<TopKAttrs>();
  const int axis = static_cast<int>(attrs.axis);
  const Layout& l = c.in[0].layout;
  Choice a{RowLayout(c.in[0], axis), RowLayout(c.out[0], axis), RowLayout(c.out[1], axis), c.in[0].dtype,
           l.shape[axis]};
  a.k = attrs.k, a.count = a.k > 0 ? c.out[0].layout.numel() / a.k : 0;
  a.room = 1;
  while (a.room < a.k) a.room *= 2;
  return a;
}

unsigned grid_of(const Choice& a, const Gpu& gpu) {
  return static_cast<unsigned>(std::min<i64>(a.count, (a.room > most_shared ? 2ll : 32ll) * gpu.processors));
}

template <class C>
void top_k_as(const Stream& s, const Choice& a) {
  const unsigned threads = a.n <= 1024 ? 32 : a.n <= 8192 ? 256 : 1024;
  const std::size_t shared = a.lists ? 0 : static_cast<std::size_t>(a.room) * sizeof(Entry);
  launch_early(s, {grid_of(a, s.gpu), threads, shared}, choose<C>, a);
}

void launch_top_k(const Stream& s, const Call& c) {
  Choice a = choice_of(c);
  if (a.count == 0) return;
  a.lists = a.room > most_shared ? reinterpret_cast<Entry*>(s.workspace) : nullptr;
  switch (compute_type(a.type)) {
    case DType::f64:
      return top_k_as<double>(s, a);
    case DType::f32:
      return top_k_as<float>(s, a);
    default:
      return top_k_as<i64>(s, a);
  }
}

std::size_t top_k_workspace(const Call& c) {
  const Choice a = choice_of(c);
  return a.room > most_shared ? grid_of(a, c.gpu) * static_cast<std::size_t>(a.room) * sizeof(Entry) : 0;
}

}  // namespace

extern const Kernel top_k_kernel{&launch_top_k, &top_k_workspace};

}  // namespace tg::cuda
