// Casts a list of tensors from f32 to bf16 or f16. Values are rounded to nearest.
#include <algorithm>
#include <string>

#include "backends/cuda/fusion/fusion.h"
#include "backends/cuda/kernels/elements.cuh"
#include "backends/cuda/kernels/tensor_list.cuh"

namespace tg::cuda {

namespace {

constexpr int pack = 4;  // elements per load

struct CastTensor {
  const float* from;
  void* to;
  i64 count;
};

template <class S>
__global__ void __launch_bounds__(list_block)
    cast_list(const CastTensor* tensors, const Chunk* chunks, int count) {
  let_next_kernel_begin();
  ask_for_row(tensors, chunks, count);
  wait_for_kernel_before();
  for (int c = blockIdx.x; c < count; c += gridDim.x) {
    const CastTensor t = tensors[chunks[c].tensor];
    const i64 begin = chunks[c].number * list_chunk + pack * threadIdx.x;
    S* const to = static_cast<S*>(t.to);
    constexpr int turns = list_chunk / (pack * list_block);
    float x[turns][pack];
#pragma unroll
    for (int n = 0; n < turns; ++n)
      if (const i64 i = begin + n * pack * list_block; i + pack <= t.count)
        unpack<float>(*reinterpret_cast<const Words<float, pack>*>(t.from + i), x[n]);
#pragma unroll
    for (int n = 0; n < turns; ++n) {
      const i64 i = begin + n * pack * list_block;
      if (i + pack <= t.count)
        *reinterpret_cast<Words<S, pack>*>(to + i) = packed<S>(x[n]);
      else
        for (i64 k = i; k < t.count; ++k) to[k] = narrow<S>(t.from[k]);
    }
  }
}

TensorList<CastTensor> casts_of(std::span<const Step> steps) {
  TensorList<CastTensor> casts;
  for (const Step& s : steps) {
    const i64 size = s.in[0].layout.numel();
    casts.add({reinterpret_cast<const float*>(s.in[0].data), s.out[0].data, size}, size);
  }
  return casts;
}

struct CastListPlan final : KernelPlan {
  ListTables<CastTensor> list;
  std::size_t casts;
  DType to;

  explicit CastListPlan(std::span<const Step> steps)
      : list(casts_of(steps)), casts(steps.size()), to(steps[0].out[0].dtype) {}

  void launch(const Stream& s, const Call&) const override {
    list.launch(s, 0, to == DType::bf16 ? cast_list<__nv_bfloat16> : cast_list<__half>);
  }
  std::string choice(const Call&) const override { return std::to_string(casts) + " casts in one kernel"; }
};

}  // namespace

std::size_t casts_together(std::span<const Step> steps) {
  std::size_t n = 0;
  for (; n < steps.size(); ++n) {
    const Step& s = steps[n];
    const Op* op = only_op_of(s);
    if (!op || !op->converts) break;
    const Arg &in = s.in[0], &out = s.out[0];
    const bool fits = in.dtype == DType::f32 && (out.dtype == DType::bf16 || out.dtype == DType::f16) &&
                      out.dtype == steps[0].out[0].dtype && ListOperand(in).takes_packs(pack) &&
                      ListOperand(out).takes_packs(pack);
    const auto clashes = [&](const Step& before) {
      return meets(out, before.in) || meets(in, before.out) || meets(out, before.out);
    };
    if (!fits || std::any_of(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(n), clashes)) break;
  }
  return n;
}

extern const FusionRule cast_list_rule{"casts in one kernel",
                                       [](const Upcoming& next) {
                                         const std::size_t casts = casts_together(next.steps);
                                         return FusionMatch{casts > 1 ? casts : 0};
                                       },
                                       [](const Upcoming& next, const FusionMatch& match) -> PlanPtr {
                                         return std::make_unique<CastListPlan>(next.steps.first(match.count));
                                       }};

}  // namespace tg::cuda
