// out[i] = Σ_s x_s[i] over the ranks, for a list of tensors in one launch (exchange.h). Additions form a tree
// that depends only on the number of ranks. If two, four or eight micro-batches are distributed over fewer
// ranks, each rank adds its micro-batches in the same tree. The sums are then bitwise identical.
#include "backends/cuda/collectives/exchange.h"

#include <bit>

#include "backends/cuda/kernels/tensor_list.cuh"

namespace tg::cuda {

namespace {

struct Summed {
  const std::byte* own;
  std::byte* out;
  i64 received, stride;  // bytes
  i64 count;
  DType from, to;
};

// Returns element or pack `i` of rank s.
template <class P>
__device__ __forceinline__ P of_rank(const Summed& t, const std::byte* received, int s, int rank, i64 i) {
  const std::byte* x = s == rank ? t.own : received + t.received + (s < rank ? s : s - 1) * t.stride;
  return reinterpret_cast<const P*>(x)[i];
}

// Sums ranks first … first + N − 1.
template <class S, class C, int N, int V>
__device__ __forceinline__ void add_tree(const Summed& t, const std::byte* received, int first, int rank,
                                         i64 i, C (&sum)[V]) {
  if constexpr (N == 1) {
    const auto p = of_rank<Pack<S, V>>(t, received, first, rank, i);
#pragma unroll
    for (int e = 0; e < V; ++e) sum[e] = static_cast<C>(widen(p.at[e]));
  } else {
    constexpr int left = static_cast<int>(std::bit_floor(unsigned{N} - 1));
    C right[V];
    add_tree<S, C, left, V>(t, received, first, rank, i, sum);
    add_tree<S, C, N - left, V>(t, received, first + left, rank, i, right);
#pragma unroll
    for (int e = 0; e < V; ++e) sum[e] += right[e];
  }
}

template <class S, class D, class C, int N>
__device__ void add_chunk(const Summed& t, const std::byte* received, int rank, i64 begin, i64 end) {
  constexpr int V = pack_of<S>;
  D* const out = reinterpret_cast<D*>(t.out);
  const bool packs = reinterpret_cast<std::uintptr_t>(t.own) % 16 == 0 &&
                     reinterpret_cast<std::uintptr_t>(out) % (V * sizeof(D) < 16 ? V * sizeof(D) : 16) == 0;
  const i64 whole = packs ? end / V : begin / V;
  for (i64 i = begin / V + threadIdx.x; i < whole; i += list_block) {
    C sum[V];
    add_tree<S, C, N, V>(t, received, 0, rank, i, sum);
#pragma unroll
    for (int e = 0; e < V; ++e) out[i * V + e] = narrow<D>(sum[e]);
  }
  for (i64 i = whole * V + threadIdx.x; i < end; i += list_block) {
    C sum[1];
    add_tree<S, C, N, 1>(t, received, 0, rank, i, sum);
    out[i] = narrow<D>(sum[0]);
  }
}

template <int N>
__global__ void __launch_bounds__(list_block)
    ordered_sum(const Summed* tensors, const Chunk* chunks, int count, const std::byte* received, int rank) {
  begin_early();
  for (int c = blockIdx.x; c < count; c += gridDim.x) {
    const Summed t = tensors[chunks[c].tensor];
    const i64 begin = chunks[c].number * list_chunk;
    const i64 end = begin + list_chunk < t.count ? begin + list_chunk : t.count;
    const bool wide = t.to == DType::f32;
    if (t.from == DType::f32)
      add_chunk<float, float, float, N>(t, received, rank, begin, end);
    else if (t.from == DType::f64)
      add_chunk<double, double, double, N>(t, received, rank, begin, end);
    else if (t.from == DType::bf16 && wide)
      add_chunk<__nv_bfloat16, float, float, N>(t, received, rank, begin, end);
    else if (t.from == DType::bf16)
      add_chunk<__nv_bfloat16, __nv_bfloat16, float, N>(t, received, rank, begin, end);
    else if (wide)
      add_chunk<__half, float, float, N>(t, received, rank, begin, end);
    else
      add_chunk<__half, __half, float, N>(t, received, rank, begin, end);
  }
}

}  // namespace

struct OrderedSumPlan : ListTables<Summed> {
  using ListTables::ListTables;
};

std::shared_ptr<const OrderedSumPlan> plan_ordered_sum(const std::vector<RankSum>& sums) {
  TensorList<Summed> list;
  for (const RankSum& s : sums)
    list.add({s.own, s.out, static_cast<i64>(s.received), static_cast<i64>(s.stride), s.count, s.from, s.to},
             s.count);
  return std::make_shared<OrderedSumPlan>(list);
}

void launch_ordered_sum(const Stream& s, const OrderedSumPlan& p, int rank, int ranks) {
  constexpr decltype(&ordered_sum<1>) kernels[most_summed_ranks] = {
      ordered_sum<1>, ordered_sum<2>, ordered_sum<3>, ordered_sum<4>,
      ordered_sum<5>, ordered_sum<6>, ordered_sum<7>, ordered_sum<8>};
  p.launch(s, 0, kernels[ranks - 1], s.workspace, rank);
}

}  // namespace tg::cuda
