// Rows along one axis, taken by teams of threads: in registers where they fit and lie well in memory, so that
// memory is read once; else read again for each pass.
#pragma once

#include <algorithm>

#include "backends/cuda/kernels/any.cuh"

namespace tg::cuda {

// The rows of an operand, numbered row-major over the other axes.
struct Rows {
  void* data;
  Strides outer;
  i64 step;  // between elements of a row

  Rows() = default;
  Rows(const Arg& a, int axis);  // axis -1: every element is a row

  template <class S>
  __device__ __forceinline__ S* at(i64 row) const {
    return static_cast<S*>(data) + offset(row);
  }
  __device__ __forceinline__ i64 offset(i64 row) const {
    if (outer.rank <= 1) return outer.rank == 1 ? row * outer.stride[0] : 0;
    return offset_of_many(outer, row);
  }

 private:
  static __device__ __noinline__ i64 offset_of_many(const Strides& s, i64 row) {
    return row < (1ll << 31) ? s.offset(static_cast<unsigned>(row)) : s.offset(row);
  }
};

// Whether rows of n elements can be read in packs.
bool takes_packs(const Rows& r, i64 n, int pack, int element_size);

constexpr int most_threads = 512;

// The shape of a launch over rows. A team is a row of threads, a warp or more, and blockDim.y of them share a
// block; or, for rows that are neighbours in memory (`across`), a column of 8 threads, and 32 share a block.
struct Teams {
  dim3 block;
  i64 rows_per_block;
  bool across;

  Teams(i64 n, i64 per_thread, bool across_rows);
  unsigned grid(i64 rows, i64 most) const;
};

// Launches a kernel whose blocks go through the rows in turn, as many as the GPU holds at once, so that what
// a block does before its first row is done once, and all blocks have as many rows.
template <class... P>
void launch_rows(const Stream& s, const Teams& teams, i64 rows, void (*kernel)(P...),
                 const std::type_identity_t<P>&... args) {
  int of_processor = 1;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_processor, kernel,
                                                static_cast<int>(teams.block.x * teams.block.y), 0);
  const i64 all = (rows + teams.rows_per_block - 1) / teams.rows_per_block,
            most = i64{std::max(of_processor, 1)} * s.gpu.processors, rounds = (all + most - 1) / most;
  launch_kernel(s, {static_cast<unsigned>((all + rounds - 1) / rounds), teams.block}, kernel, args...);
}

// A thread's place in its team. All threads of a block take part in reduce().
template <bool any_shape>
struct Team {
  int rank, size, index;  // index: of the team in its block
  bool across;

  __device__ explicit Team(bool across_rows) : across(any_shape && across_rows) {
    rank = across ? threadIdx.y : threadIdx.x;
    size = across ? blockDim.y : blockDim.x;
    index = across ? threadIdx.x : threadIdx.y;
  }

  // op over the team's values, the same bits for all its threads.
  template <class C, class Op>
  __device__ __forceinline__ C reduce(C v, Op op) const {
    __shared__ C of_warp[any_shape ? 256 : 32];
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
    for (int by = 16; by > 0; by /= 2) v = op(v, __shfl_xor_sync(0xffffffffu, v, by));
    if (size == 32) return v;
    const int warps = size / 32;
    __syncthreads();
    if (rank % 32 == 0) of_warp[index * warps + rank / 32] = v;
    __syncthreads();
    v = of_warp[index * warps + rank % warps];
    for (int by = warps / 2; by > 0; by /= 2) v = op(v, __shfl_xor_sync(0xffffffffu, v, by));
    return v;
  }
  template <class C>
  __device__ __forceinline__ C sum(C v) const {
    return reduce(v, [](C a, C b) { return a + b; });
  }
  template <class C>
  __device__ __forceinline__ C max(C v) const {
    return reduce(v, [](C a, C b) { return b > a ? b : a; });
  }
};

// Rows are loaded in two steps, so that a thread can ask for the next row before it works on this one.
// Of a row to be held: packs of V as they are stored, up to K of them per thread and operand.
template <class S, int N, int V, int K>
struct LoadedRow {
  int rank, size, packs;
  Pack<S, V> pack[N][K];

  template <class T>
  __device__ __forceinline__ LoadedRow(const T& team, i64 n, const S* const (&in)[N], const i64 (&)[N])
      : rank(team.rank), size(team.size), packs(static_cast<int>(n / V)) {
#pragma unroll
    for (int o = 0; o < N; ++o)
#pragma unroll
      for (int k = 0; k < K; ++k)
        if (rank + k * size < packs) pack[o][k] = reinterpret_cast<const Pack<S, V>*>(in[o])[rank + k * size];
  }
};

// N operands' elements of one row, held in registers.
// f is called with the N values, the element's number and the slot it is held in.
template <class S, int N, int V, int K>
class HeldRow {
 public:
  static constexpr bool held = true;
  static constexpr int slots = V * K;
  using C = compute_t<S>;

  using Loaded = LoadedRow<S, N, V, K>;

  __device__ __forceinline__ explicit HeldRow(const Loaded& l)
      : rank_(l.rank), size_(l.size), packs_(l.packs) {
#pragma unroll
    for (int o = 0; o < N; ++o)
#pragma unroll
      for (int k = 0; k < K; ++k)
        if (rank_ + k * size_ < packs_)
#pragma unroll
          for (int e = 0; e < V; ++e) v_[o][k * V + e] = widen(l.pack[o][k].at[e]);
  }
  // In one step, which takes fewer registers where no other row is asked for meanwhile.
  template <class T>
  __device__ __forceinline__ HeldRow(const T& team, i64 n, const S* const (&in)[N], const i64 (&)[N])
      : rank_(team.rank), size_(team.size), packs_(static_cast<int>(n / V)) {
#pragma unroll
    for (int o = 0; o < N; ++o)
#pragma unroll
      for (int k = 0; k < K; ++k)
        if (rank_ + k * size_ < packs_) {
          const auto p = reinterpret_cast<const Pack<S, V>*>(in[o])[rank_ + k * size_];
#pragma unroll
          for (int e = 0; e < V; ++e) v_[o][k * V + e] = widen(p.at[e]);
        }
  }
  template <class F>
  __device__ __forceinline__ void read(F f) {
    each([&](int slot, i64 i) { call(f, slot, i); });
  }
  // Makes f(values…) the first operand's.
  template <class F>
  __device__ __forceinline__ void update(F f) {
    each([&](int slot, i64 i) { v_[0][slot] = call(f, slot, i); });
  }
  template <class F>
  __device__ __forceinline__ void write(S* out, i64, F f) {
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (rank_ + k * size_ < packs_) {
        const int at = rank_ + k * size_;
        Pack<S, V> p;
#pragma unroll
        for (int e = 0; e < V; ++e) p.at[e] = narrow<S>(call(f, k * V + e, i64(at) * V + e));
        reinterpret_cast<Pack<S, V>*>(out)[at] = p;
      }
  }

 private:
  template <class F>
  __device__ __forceinline__ auto call(F f, int slot, i64 i) const {
    if constexpr (N == 1)
      return f(v_[0][slot], i, slot);
    else
      return f(v_[0][slot], v_[1][slot], i, slot);
  }
  template <class F>
  __device__ __forceinline__ void each(F f) {
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (rank_ + k * size_ < packs_)
#pragma unroll
        for (int e = 0; e < V; ++e) f(k * V + e, i64(rank_ + k * size_) * V + e);
  }

  int rank_, size_, packs_;
  C v_[N][slots];
};

// The same for rows of any length and step, read from memory in each pass: in packs between the first and the
// last elements, if all operands are at the same place of a pack.
template <class S, int N>
class ReadRow {
 public:
  static constexpr bool held = false;
  static constexpr int slots = 1;
  using Loaded = ReadRow;
  static constexpr int V = pack_of<S>;
  using C = compute_t<S>;

  template <class T>
  __device__ __forceinline__ ReadRow(const T& team, i64 n, const S* const (&in)[N], const i64 (&step)[N])
      : rank_(team.rank), size_(team.size), n_(n) {
    for (int o = 0; o < N; ++o) in_[o] = in[o], step_[o] = step[o];
  }
  template <class F>
  __device__ __forceinline__ void read(F f) const {
    walk(static_cast<S*>(nullptr), 1, f);
  }
  // f is called with arrays of 1 or V values of the only operand.
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
      const Pack<S, V> p = *reinterpret_cast<const Pack<S, V>*>(in_[0] + i);
      C v[V];
#pragma unroll
      for (int e = 0; e < V; ++e) v[e] = widen(p.at[e]);
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
      return f(v[0], i, 0);
    else
      return f(v[0], v[1], i, 0);
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

// Row r of `count` rows of n elements, asked for; nothing of a row beyond the last.
template <class S, class Row, class T>
__device__ __forceinline__ typename Row::Loaded load_row(const T& team, const Rows& x, i64 r, i64 count,
                                                         i64 n) {
  if (r >= count) n = 0;
  const S* const in[1] = {n > 0 ? x.at<S>(r) : nullptr};
  const i64 steps[1] = {x.step};
  return typename Row::Loaded(team, n, in, steps);
}

}  // namespace tg::cuda
