// Rows along one axis. A team of threads processes each row. If rows are aligned and fit in registers, they
// are held there, so memory is read only once. Otherwise each pass reads the rows again.
#pragma once

#include <algorithm>

#include "backends/cuda/kernels/any.cuh"

namespace tg::cuda {

// The layout of an operand's rows, numbered row-major over the other axes.
struct RowLayout {
  void* data;
  Strides outer;
  i64 step;  // between elements of a row

  RowLayout() = default;
  // If `axis` is -1, every element is a row.
  RowLayout(const Arg& a, int axis) : data(a.data), step(1) {
    const Layout& l = a.layout;
    for (int i = 0; i < l.rank(); ++i) {
      if (i == axis) {
        step = l.strides[i];
        continue;
      }
      const i64 size = l.shape[i], stride = l.strides[i];
      if (size == 1) continue;
      const int last = outer.rank - 1;
      if (last >= 0 && outer.stride[last] == size * stride)
        outer.size[last] *= size, outer.stride[last] = stride;
      else
        outer.size[outer.rank] = size, outer.stride[outer.rank++] = stride;
    }
    if (axis >= 0 && l.shape[axis] == 1) step = 1;
  }

  // `quick` states that the launch has checked quick_to_find().
  template <class S, bool quick = false>
  __device__ __forceinline__ S* at(i64 row) const {
    return static_cast<S*>(data) + offset<quick>(row);
  }
  template <bool quick = false>
  __device__ __forceinline__ i64 offset(i64 row) const {
    if (outer.rank <= 1) return outer.rank == 1 ? row * outer.stride[0] : 0;
    if (!quick) return offset_of_many(outer, row);
    const auto inner = static_cast<unsigned>(outer.size[1]), first = static_cast<unsigned>(row) / inner;
    return first * outer.stride[0] + (static_cast<unsigned>(row) - first * inner) * outer.stride[1];
  }
  // Whether the address of a row can be computed inline. A function call would cause register spills.
  bool quick_to_find(i64 rows) const { return outer.rank <= 1 || (outer.rank == 2 && rows < (1ll << 31)); }

 private:
  static __device__ __noinline__ i64 offset_of_many(const Strides& s, i64 row) {
    return row < (1ll << 31) ? s.offset(static_cast<unsigned>(row)) : s.offset(row);
  }
};

// Whether rows of n elements can be read in packs.
inline bool takes_packs(const RowLayout& r, i64 n, int pack, int element_size) {
  bool fits = r.step == 1 && n % pack == 0 &&
              reinterpret_cast<std::uintptr_t>(r.data) % (static_cast<std::size_t>(pack) * element_size) == 0;
  for (int a = 0; a < r.outer.rank; ++a) fits = fits && r.outer.stride[a] % pack == 0;
  return fits;
}

constexpr int most_threads = 512;

// The shape of a launch over rows. A team is one or more warps. Its threads have the same threadIdx.y. A
// block has blockDim.y teams and at least `least` threads. If rows interleave in memory (`across`), the 8
// threads with the same threadIdx.x are a team, and a block has 32 teams.
struct Teams {
  dim3 block;
  i64 rows_per_block;
  bool across;
  std::size_t shared = 0;  // dynamic shared memory of a block, in bytes

  Teams(i64 n, i64 per_thread, bool across_rows, unsigned least = 128) : across(across_rows) {
    unsigned threads = 32;
    while (threads < most_threads && threads * per_thread < n) threads *= 2;
    block = across ? dim3(32, 8) : dim3(threads, threads < least ? least / threads : 1);
    rows_per_block = across ? 32 : block.y;
  }
  unsigned grid(i64 rows, i64 most) const {
    return static_cast<unsigned>(std::min((rows + rows_per_block - 1) / rows_per_block, most));
  }
};

// Launches a kernel whose blocks iterate over the rows. There are as many blocks as the GPU can run at the
// same time. Each block then performs its initial work only once, and all blocks have the same number of
// rows. The kernel begins with begin_early().
template <class... P>
void launch_rows(const Stream& s, const Teams& teams, i64 rows, void (*kernel)(P...),
                 const std::type_identity_t<P>&... args) {
  int of_processor = 1;
  allow_shared(kernel, teams.shared);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &of_processor, kernel, static_cast<int>(teams.block.x * teams.block.y), teams.shared);
  const i64 all = (rows + teams.rows_per_block - 1) / teams.rows_per_block,
            most = i64{std::max(of_processor, 1)} * s.gpu.processors, rounds = (all + most - 1) / most;
  launch_early(s, {static_cast<unsigned>((all + rounds - 1) / rounds), teams.block, teams.shared}, kernel,
               args...);
}

// Two sums that are computed together.
template <class C>
struct Two {
  C a, b;
  __device__ __forceinline__ Two& operator+=(const Two& o) {
    a += o.a, b += o.b;
    return *this;
  }
  __device__ __forceinline__ friend Two operator+(Two l, const Two& r) { return l += r; }
};
template <class C>
__device__ __forceinline__ C from_lane_xor(C v, int by) {
  return __shfl_xor_sync(0xffffffffu, v, by);
}
template <class C>
__device__ __forceinline__ Two<C> from_lane_xor(const Two<C>& v, int by) {
  return {from_lane_xor(v.a, by), from_lane_xor(v.b, by)};
}

// A thread's rank in its team. All threads of a block must call reduce().
template <bool any_shape>
struct Team {
  int rank, size, index;  // `index` is the index of the team in its block
  bool across;

  __device__ explicit Team(bool across_rows) : across(any_shape && across_rows) {
    rank = across ? threadIdx.y : threadIdx.x;
    size = across ? blockDim.y : blockDim.x;
    index = across ? threadIdx.x : threadIdx.y;
  }

  // Applies op over the team's values. The result is bitwise identical in all of its threads.
  template <class C, class Op>
  __device__ __forceinline__ C reduce(C v, Op op) {
    __shared__ C of_warp[any_shape ? 256 : 64];
    if (across) {
      const int own = threadIdx.y * 32 + threadIdx.x;
      __syncthreads();
      of_warp[own] = v;
      __syncthreads();
      C all = of_warp[threadIdx.x];
      for (int k = 1; k < size; ++k) all = op(all, of_warp[k * 32 + threadIdx.x]);
      return all;
    }
#pragma unroll
    for (int by = 16; by > 0; by /= 2) v = op(v, from_lane_xor(v, by));
    if (size == 32) return v;
    half_ ^= 32;  // threads may still read the other half, so one barrier per call is enough
    const int warps = size / 32, first = half_ + index * warps;
    if (rank % 32 == 0) of_warp[first + rank / 32] = v;
    __syncthreads();
    C all = of_warp[first];
#pragma unroll 4
    for (int w = 1; w < warps; ++w) all = op(all, of_warp[first + w]);
    return all;
  }
  template <class C>
  __device__ __forceinline__ C sum(C v) {
    return reduce(v, [](C a, C b) { return a + b; });
  }
  template <class C>
  __device__ __forceinline__ C max(C v) {
    return reduce(v, [](C a, C b) { return fmax(a, b); });
  }

 private:
  int half_ = 0;
};

// The elements of one row of N operands, held in registers in the storage type. A thread has at most K packs
// of each operand. It waits for loads only when it uses the elements, so it can load a row ahead of time.
// Beyond the end of a row, functions receive zeros and their results are ignored.
template <class S, int N, int K>
class HeldRow {
 public:
  static constexpr bool held = true;
  static constexpr int V = pack_of<S>, slots = V * K, per_thread = slots;
  using C = compute_t<S>;

  template <class T>
  __device__ __forceinline__ HeldRow(const T& team, i64 n, const S* const (&in)[N], const i64 (&)[N])
      : rank_(team.rank), size_(team.size), packs_(static_cast<int>(n) / V) {
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
      for (int o = 0; o < N; ++o) {
        pack_[o][k] = {};
        if (here(k)) pack_[o][k] = reinterpret_cast<const Words<S, V>*>(in[o])[place(k)];
      }
  }
  // The maximum of this thread's elements, or -∞ if there are none.
  __device__ __forceinline__ C max() const {
    static_assert(N == 1);
    C top = static_cast<C>(-__builtin_huge_val());
    each_pack([&](int k) {
      const C of_pack = largest(pack_[0][k]);
      if (here(k)) top = fmax(top, of_pack);
    });
    return top;
  }
  // Calls f(the only operand's words, the first element's index) for each pack of this thread.
  template <class F>
  __device__ __forceinline__ void each_words(F f) const {
    static_assert(N == 1);
    each_pack([&](int k) {
      if (here(k)) f(pack_[0][k], place(k) * V);
    });
  }
  // Σ f(values…, the element's index) over this thread's elements.
  template <class F>
  __device__ __forceinline__ auto sum(F f) const {
    return sum_of([&](int k) {
      C x[N][V];
      unpack_all(k, x);
      auto sum = call(f, x, k, 0);
#pragma unroll
      for (int e = 1; e < V; ++e) sum += call(f, x, k, e);
      return sum;
    });
  }
  // Σ f(arrays of V values…, k, the pack's index) over the packs k of this thread.
  template <class F>
  __device__ __forceinline__ auto sum_packs(F f) const {
    return sum_of([&](int k) {
      C x[N][V];
      unpack_all(k, x);
      if constexpr (N == 1)
        return f(x[0], k, place(k));
      else
        return f(x[0], x[1], k, place(k));
    });
  }
  // Writes f(values…, the element's index).
  template <class F>
  __device__ __forceinline__ void write(S* out, i64, F f) const {
    each_pack([&](int k) {
      C x[N][V];
      unpack_all(k, x);
#pragma unroll
      for (int e = 0; e < V; ++e) x[0][e] = call(f, x, k, e);
      if (here(k)) put(out, k, x[0]);
    });
  }
  // Writes the first operand's arrays after f(arrays of V values…, the pack's index) has modified them.
  template <class F>
  __device__ __forceinline__ void write_packs(S* out, F f) const {
    each_pack([&](int k) {
      C x[N][V];
      unpack_all(k, x);
      if constexpr (N == 1)
        f(x[0], place(k));
      else
        f(x[0], x[1], place(k));
      if (here(k)) put(out, k, x[0]);
    });
  }

 private:
  __device__ __forceinline__ int place(int k) const {
    return rank_ + k * size_;
  }
  // Whether this thread has a k-th pack.
  __device__ __forceinline__ bool here(int k) const {
    return place(k) < packs_;
  }
  // Calls f(k) for all packs, including packs that no thread of the team has. A branch would slow down full
  // rows more than it would speed up other rows.
  template <class F>
  __device__ __forceinline__ void each_pack(F f) const {
#pragma unroll
    for (int k = 0; k < K; ++k) f(k);
  }
  template <class F>
  __device__ __forceinline__ auto sum_of(F f) const {
    decltype(f(0)) total{};
    each_pack([&](int k) {
      const auto of_pack = f(k);
      if (here(k)) total += of_pack;
    });
    return total;
  }
  __device__ __forceinline__ void unpack_all(int k, C (&x)[N][V]) const {
#pragma unroll
    for (int o = 0; o < N; ++o) unpack(pack_[o][k], x[o]);
  }
  __device__ __forceinline__ void put(S* out, int k, const C (&x)[V]) const {
    reinterpret_cast<Words<S, V>*>(out)[place(k)] = packed<S>(x);
  }
  template <class F>
  __device__ __forceinline__ auto call(F f, const C (&x)[N][V], int k, int e) const {
    if constexpr (N == 1)
      return f(x[0][e], place(k) * V + e);
    else
      return f(x[0][e], x[1][e], place(k) * V + e);
  }

  int rank_, size_, packs_;
  Words<S, V> pack_[N][K];
};

// A row of N operands. A thread has enough registers to hold this row while it loads the next one.
template <class S, int N = 1, int K = 4>
using Held = HeldRow<S, N, K>;

// A row of any length and step. Each pass reads it from memory. If the rows of all operands begin at the same
// offset from a pack, rows are read in packs. Only the first and last elements are read individually.
template <class S, int N>
class ReadRow {
 public:
  static constexpr bool held = false;
  static constexpr int slots = 1, per_thread = 16;
  static constexpr int V = pack_of<S>;
  using C = compute_t<S>;

  template <class T>
  __device__ __forceinline__ ReadRow(const T& team, i64 n, const S* const (&in)[N], const i64 (&step)[N])
      : rank_(team.rank), size_(team.size), n_(n) {
    for (int o = 0; o < N; ++o) in_[o] = in[o], step_[o] = step[o];
  }
  // Σ f(values…) over this thread's elements.
  template <class F>
  __device__ __forceinline__ auto sum(F f) const {
    decltype(call(f, {C{}}, 0)) total{};
    walk(static_cast<S*>(nullptr), 1, [&](auto... x) { total += f(x...); });
    return total;
  }
  // Calls f with arrays of 1 or V values of the only operand.
  template <class F>
  __device__ __forceinline__ void read_packs(F f) const {
    static_assert(N == 1);
    const int at = place_in_pack(in_[0]);
    i64 begin = step_[0] != 1 ? n_ : at == 0 ? 0 : V - at;
    begin = begin < n_ ? begin : n_;
    const i64 end = begin + (n_ - begin) / V * V;
    for (i64 i = rank_; i < n_; i += size_) {
      if (i >= begin && i < end) i += (end - i + size_ - 1) / size_ * size_;
      if (i >= n_) break;
      const C v[1] = {widen(in_[0][i * step_[0]])};
      f(v);
    }
#pragma unroll 2
    for (i64 i = begin + i64(rank_) * V; i < end; i += i64(size_) * V) {
      C v[V];
      unpack(*reinterpret_cast<const Words<S, V>*>(in_[0] + i), v);
      f(v);
    }
  }
  template <class F>
  __device__ __forceinline__ void write(S* out, i64 step, F f) const {
    walk(out, step, f);
  }

 private:
  static __device__ __forceinline__ int place_in_pack(const void* p) {
    return static_cast<int>(reinterpret_cast<unsigned long long>(p) % 16 / sizeof(S));
  }
  template <class F>
  __device__ __forceinline__ auto call(F f, const C (&v)[N], i64 i) const {
    if constexpr (N == 1)
      return f(v[0], i);
    else
      return f(v[0], v[1], i);
  }
  template <class F>
  __device__ __forceinline__ void one(S* out, i64 step, i64 i, F f) const {
    C v[N];
#pragma unroll
    for (int o = 0; o < N; ++o) v[o] = widen(in_[o][i * step_[o]]);
    if constexpr (std::is_void_v<decltype(call(f, v, i))>)
      call(f, v, i);
    else
      out[i * step] = narrow<S>(call(f, v, i));
  }
  template <class F>
  __device__ __forceinline__ void walk(S* out, i64 step, F f) const {
    const int at = place_in_pack(in_[0]);
    bool packs = step_[0] == 1 && step == 1 && (!out || place_in_pack(out) == at);
    if (N > 1) packs = packs && step_[N - 1] == 1 && place_in_pack(in_[N - 1]) == at;
    i64 begin = 0, end = 0;  // of the packs
    if (packs) {
      begin = at == 0 ? 0 : V - at;
      begin = begin < n_ ? begin : n_;
      end = begin + (n_ - begin) / V * V;
    }
    for (i64 i = rank_; i < begin; i += size_) one(out, step, i, f);
    for (i64 i = begin + i64(rank_) * V; i < end; i += i64(size_) * V) {
      Pack<S, V> p[N], q;
#pragma unroll
      for (int o = 0; o < N; ++o) p[o] = *reinterpret_cast<const Pack<S, V>*>(in_[o] + i);
#pragma unroll
      for (int e = 0; e < V; ++e) {
        C v[N];
#pragma unroll
        for (int o = 0; o < N; ++o) v[o] = widen(p[o].at[e]);
        if constexpr (std::is_void_v<decltype(call(f, v, i))>)
          call(f, v, i + e);
        else
          q.at[e] = narrow<S>(call(f, v, i + e));
      }
      if constexpr (!std::is_void_v<decltype(call(f, {C{}}, i))>) *reinterpret_cast<Pack<S, V>*>(out + i) = q;
    }
    for (i64 i = end + rank_; i < n_; i += size_) one(out, step, i, f);
  }

  int rank_, size_;
  i64 n_;
  const S* in_[N];
  i64 step_[N];
};

// Whether rows of n elements can be held by Row.
template <class S, class Row>
bool fits(i64 n, i64 rows, std::initializer_list<const RowLayout*> operands) {
  bool all = n <= i64{Row::slots} * most_threads;
  for (const RowLayout* r : operands)
    all = all && takes_packs(*r, n, pack_of<S>, sizeof(S)) && r->quick_to_find(rows);
  return all;
}

// Starts to load row r of `count` rows of n elements. Loads nothing beyond the last row.
template <class S, class Row, class T, class... More>
__device__ __forceinline__ Row load_row(const T& team, i64 r, i64 count, i64 n, const RowLayout& x,
                                        const More&... more) {
  const bool none = r >= count;
  const S* const in[] = {none ? nullptr : x.at<S, Row::held>(r),
                         (none ? nullptr : more.template at<S, Row::held>(r))...};
  const i64 steps[] = {x.step, more.step...};
  return Row(team, none ? 0 : n, in, steps);
}

}  // namespace tg::cuda
