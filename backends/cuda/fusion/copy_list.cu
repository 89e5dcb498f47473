// to[i] = from[i] for a list of memory ranges, in one launch (exchange.h).
#include "backends/cuda/collectives/exchange.h"

#include "backends/cuda/kernels/tensor_list.cuh"

namespace tg::cuda {

namespace {

struct alignas(16) Sixteen {
  unsigned at[4];
};

constexpr i64 copy_chunk = list_chunk * static_cast<i64>(sizeof(Sixteen));  // bytes

__global__ void __launch_bounds__(list_block)
    copy_list(const PieceCopy* pieces, const Chunk* chunks, int count, std::byte* workspace) {
  begin_early();
  for (int c = blockIdx.x; c < count; c += gridDim.x) {
    const PieceCopy p = pieces[chunks[c].tensor];
    const std::byte* const from = p.from.in(workspace);
    std::byte* const to = p.to.in(workspace);
    const i64 begin = chunks[c].number * copy_chunk;
    const i64 all = static_cast<i64>(p.bytes), end = begin + copy_chunk < all ? begin + copy_chunk : all;
    i64 rest = begin;
    if ((reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to)) % sizeof(Sixteen) ==
        0) {
      constexpr i64 size = sizeof(Sixteen);
      rest = end / size * size;
#pragma unroll 4
      for (i64 i = begin / size + threadIdx.x; i < rest / size; i += list_block)
        reinterpret_cast<Sixteen*>(to)[i] = reinterpret_cast<const Sixteen*>(from)[i];
    }
    for (i64 i = rest + threadIdx.x; i < end; i += list_block) to[i] = from[i];
  }
}

}  // namespace

struct CopyListPlan : ListTables<PieceCopy> {
  using ListTables::ListTables;
};

std::shared_ptr<const CopyListPlan> plan_copy_list(const std::vector<PieceCopy>& copies) {
  TensorList<PieceCopy> list;
  for (const PieceCopy& c : copies) list.add(c, static_cast<i64>(c.bytes), copy_chunk);
  return std::make_shared<CopyListPlan>(list);
}

void launch_copy_list(const Stream& s, const CopyListPlan& p) {
  p.launch(s, 0, copy_list, s.workspace);
}

}  // namespace tg::cuda
