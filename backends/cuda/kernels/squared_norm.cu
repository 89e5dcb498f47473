// Norms of a list of tensors, each op in one launch. squared_norm: Σ x². global_norm: √Σ x². Each thread sums
// its elements, and each block sums its threads' sums in f64. The last block to finish adds the blocks' sums
// in order, so results are bitwise identical in every run on the same GPU. block_norms: a warp computes √Σ x²
// of a block. The result is bitwise independent of the block's position in a tensor and of the tensor's
// length. If squares overflow or underflow, they are summed again in f64 (ops/square_sums.h).
#include <tilegrad/ops/block_norms.h>
#include "backends/cuda/kernels/tensor_list.cuh"
#include "ops/square_sums.h"

namespace tg::cuda {

namespace {

struct Source {
  ListOperand x;
  i64 count;
  bool packs;

  explicit Source(const Arg& a)
      : x(a), count(a.layout.numel()), packs(x.takes_packs(16 / size_of(a.dtype))) {}
};

template <class S, class C>
__device__ __forceinline__ C squares_of_packs(const Source& a, i64 begin, i64 end) {
  constexpr int V = pack_of<S>;
  C sum[V] = {};
  const i64 packs = end / V;
#pragma unroll 4
  for (i64 i = begin / V + threadIdx.x; i < packs; i += list_block) {
    const auto p = static_cast<const Pack<S, V>*>(a.x.data)[i];
#pragma unroll
    for (int e = 0; e < V; ++e) {
      const C x = widen(p.at[e]);
      sum[e] += x * x;
    }
  }
  const i64 rest = packs * V + threadIdx.x;
  if (rest < end) {
    const C x = widen(static_cast<const S*>(a.x.data)[rest]);
    sum[0] += x * x;
  }
#pragma unroll
  for (int half = V / 2; half > 0; half /= 2)
#pragma unroll
    for (int e = 0; e < half; ++e) sum[e] += sum[e + half];
  return sum[0];
}

// Σ (factor·x)² in f64 over the elements that squares_of assigns to this thread.
__device__ __noinline__ double squares_again(const Source& a, i64 begin, i64 end, int v, double factor) {
  double sum = 0;
  const auto add = [&](i64 i) {
    const double x = load_as<double>(a.x.data, a.x.type, a.x.offset(i)) * factor;
    sum += x * x;
  };
  const i64 packs = end / v;
  for (i64 p = begin / v + threadIdx.x; p < packs; p += list_block)
    for (int e = 0; e < v; ++e) add(p * v + e);
  if (packs * v + threadIdx.x < end) add(packs * v + threadIdx.x);
  return sum;
}

template <class C>
__device__ C squares_of(const Source& a, i64 begin, i64 end) {
  if (a.packs) {
    switch (a.x.type) {
      case DType::f32:
        return squares_of_packs<float, C>(a, begin, end);
      case DType::bf16:
        return squares_of_packs<__nv_bfloat16, C>(a, begin, end);
      case DType::f16:
        return squares_of_packs<__half, C>(a, begin, end);
      default:
        break;
    }
  }
  C sum = 0;
  for (i64 i = begin + threadIdx.x; i < end; i += list_block) {
    const C x = load_as<C>(a.x.data, a.x.type, a.x.offset(i));
    sum += x * x;
  }
  return sum;
}

// Adds the thread's share of a chunk: packs of V elements, and at most one of the remaining elements.
template <class C>
__device__ __forceinline__ void add_squares(SquareSums& to, const Source& a, i64 begin, i64 end) {
  const C squares = squares_of<C>(a, begin, end);
  if (is_in_range(squares)) return to.add(static_cast<double>(squares), 1);
  const double factor = SquareSums::factor_for(squares);
  const int v = a.packs && a.x.type != DType::f64 ? 16 / (a.x.type == DType::f32 ? 4 : 2) : 1;
  to.add(squares_again(a, begin, end, v, factor), factor);
}

// Σ v over the block, for thread 0.
__device__ __forceinline__ double sum_of_block(double v) {
  __shared__ double of_warp[list_block / 32];
#pragma unroll
  for (int by = 16; by > 0; by /= 2) v += __shfl_down_sync(0xffffffffu, v, by);
  __syncthreads();  // all threads have read the previous sum
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int w = 1; w < list_block / 32; ++w) v += of_warp[w];
  return v;
}
// Only f64 elements have sums of big and small squares.
template <class C>
__device__ __forceinline__ SquareSums sum_of_block(const SquareSums& v) {
  if constexpr (sizeof(C) == 4) return {sum_of_block(v.mid)};
  return {sum_of_block(v.mid), sum_of_block(v.big), sum_of_block(v.small)};
}

// `partial` has the sums of each block. `done` is the number of blocks that have written their sums. Between
// launches it is 0.
template <class C>
__global__ void __launch_bounds__(list_block)
    sum_squares(const Source* tensors, const Chunk* chunks, int count, SquareSums* partial, unsigned* done,
                C* out, bool root) {
  let_next_kernel_begin();
  ask_for_row(tensors, chunks, count);
  wait_for_kernel_before();
  __shared__ bool last;
  SquareSums sum;
  for (int c = blockIdx.x; c < count; c += gridDim.x) {
    const Source& a = tensors[chunks[c].tensor];
    const i64 begin = chunks[c].number * list_chunk;
    add_squares<C>(sum, a, begin, begin + list_chunk < a.count ? begin + list_chunk : a.count);
  }
  sum = sum_of_block<C>(sum);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
    __threadfence();
    last = atomicAdd(done, 1u) + 1 == gridDim.x;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  const volatile SquareSums* all = partial;
  sum = {};
  for (unsigned b = threadIdx.x; b < gridDim.x; b += list_block) {
    sum.mid += all[b].mid;
    if constexpr (sizeof(C) == 8) sum.big += all[b].big, sum.small += all[b].small;
  }
  sum = sum_of_block<C>(sum);
  if (threadIdx.x > 0) return;
  *out = static_cast<C>(root ? sum.norm() : sum.total());
  *done = 0;
}

TensorList<Source> sources_of(const Call& c) {
  TensorList<Source> sources;
  for (const Arg& a : c.in) sources.add(Source(a), a.layout.numel());
  return sources;
}

// squared_norm, or its root.
template <bool root>
struct SquaredNormPlan final : KernelPlan {
  ListTables<Source> list;
  std::shared_ptr<void> done = zeros_on_device(sizeof(unsigned));

  explicit SquaredNormPlan(const Call& c) : list(sources_of(c)) {}
  std::size_t workspace(const Call& c) const override {
    return std::max(list.grid(c.gpu), 1u) * sizeof(SquareSums);
  }
  void launch(const Stream& s, const Call& c) const override {
    const auto run = [&](auto* out, auto kernel) {
      list.launch(s, 1, kernel, reinterpret_cast<SquareSums*>(s.workspace),
                  static_cast<unsigned*>(done.get()), out, root);
    };
    if (c.out[0].dtype == DType::f64)
      run(reinterpret_cast<double*>(c.out[0].data), sum_squares<double>);
    else
      run(reinterpret_cast<float*>(c.out[0].data), sum_squares<float>);
  }
};

// An operand and the destination of its norms.
struct NormedBlocks {
  Source from;
  void* to;
};

// The thread's share of Σ x² over elements begin … end − 1. The thread has four adjacent elements of every
// 128.
template <class C>
__device__ C share_of_block(const Source& a, i64 begin, i64 end) {
  C sum[4] = {};
  const i64 first = begin + threadIdx.x % 32 * 4;
  if (std::is_same_v<C, float> && a.packs && a.x.type == DType::f32 && end - begin == norm_block) {
#pragma unroll
    for (int i = 0; i < norm_block; i += 128) {
      const auto p = static_cast<const Pack<float, 4>*>(a.x.data)[(first + i) / 4];
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[e] += static_cast<C>(p.at[e]) * static_cast<C>(p.at[e]);
    }
  } else {
    for (i64 i = first; i < end; i += 128)
      for (int e = 0; e < 4 && i + e < end; ++e) {
        const C x = load_as<C>(a.x.data, a.x.type, a.x.offset(i + e));
        sum[e] += x * x;
      }
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

template <class C>
__device__ __forceinline__ C sum_of_warp(C v) {  // for lane 0
#pragma unroll
  for (int by = 16; by > 0; by /= 2) v += __shfl_down_sync(0xffffffffu, v, by);
  return v;
}

template <class C>
__device__ void write_norm(const NormedBlocks& t, i64 begin, i64 end) {
  const int lane = threadIdx.x % 32;
  const C squares = __shfl_sync(0xffffffffu, sum_of_warp(share_of_block<C>(t.from, begin, end)), 0);
  SquareSums sum;
  if (is_in_range(squares)) {
    sum.add(static_cast<double>(squares), 1);
  } else {
    const double factor = SquareSums::factor_for(squares);
    double again = 0;
    for (i64 i = begin + lane; i < end; i += 32) {
      const double x = load_as<double>(t.from.x.data, t.from.x.type, t.from.x.offset(i)) * factor;
      again += x * x;
    }
    sum.add(sum_of_warp(again), factor);
  }
  if (lane == 0) static_cast<C*>(t.to)[begin / norm_block] = static_cast<C>(sum.norm());
}

constexpr int norms_of_chunk = list_block / 32;

__global__ void __launch_bounds__(list_block)
    norms_of_blocks(const NormedBlocks* tensors, const Chunk* chunks, int count) {
  let_next_kernel_begin();
  ask_for_row(tensors, chunks, count);
  wait_for_kernel_before();
  for (int c = blockIdx.x; c < count; c += gridDim.x) {
    const NormedBlocks& t = tensors[chunks[c].tensor];
    const i64 begin = (chunks[c].number * norms_of_chunk + threadIdx.x / 32) * norm_block;
    if (begin >= t.from.count) continue;
    const i64 end = begin + norm_block < t.from.count ? begin + norm_block : t.from.count;
    t.from.x.type == DType::f64 ? write_norm<double>(t, begin, end) : write_norm<float>(t, begin, end);
  }
}

TensorList<NormedBlocks> blocks_of(const Call& c) {
  TensorList<NormedBlocks> blocks;
  for (std::size_t i = 0; i < c.in.size(); ++i)
    blocks.add({Source(c.in[i]), c.out[i].data}, c.in[i].layout.numel(), norms_of_chunk * norm_block);
  return blocks;
}

struct BlockNormsPlan final : KernelPlan {
  ListTables<NormedBlocks> list;

  explicit BlockNormsPlan(const Call& c) : list(blocks_of(c)) {}
  void launch(const Stream& s, const Call&) const override { list.launch(s, 0, norms_of_blocks); }
};

}  // namespace

extern const Kernel block_norms_kernel{&plan_as<BlockNormsPlan>};
extern const Kernel squared_norm_kernel{&plan_as<SquaredNormPlan<false>>};
extern const Kernel global_norm_kernel{&plan_as<SquaredNormPlan<true>>};

}  // namespace tg::cuda
