// Sums of few terms (fusion.h). Each sum has a separately compiled kernel.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/fusion/fusion.h"
#include "backends/cuda/jit/code.h"
#include "backends/cuda/jit/fused_source.h"
#include "core/graph/op_attrs.h"

namespace tg::cuda {

namespace {

constexpr int few_block = 128;  // threads per block
constexpr std::int64_t most_terms = 32, most_terms_in_all = std::int64_t{1} << 20;

bool is_summed(const Step& s, int axis) {
  const Axes& axes = s.attrs.as<ReduceAttrs>().axes;
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

// Returns the offsets of a sum's terms, in row-major order.
std::vector<std::int64_t> f16_split_of(const Step& s) {
  const Layout& l = s.in[0].layout;
  std::vector<std::int64_t> at{0};
  for (int axis = 0; axis < l.rank(); ++axis) {
    if (!is_summed(s, axis)) continue;
    std::vector<std::int64_t> more;
    for (const std::int64_t from : at)
      for (std::int64_t i = 0; i < l.shape[axis]; ++i) more.push_back(from + i * l.strides[axis]);
    at = std::move(more);
  }
  return at;
}

struct SumOfFewPlan final : KernelPlan {
  cudaKernel_t kernel;
  unsigned grid;
  const void *to, *from;

  SumOfFewPlan(cudaKernel_t code, unsigned blocks, const void* out, const void* in)
      : kernel(code), grid(blocks), to(out), from(in) {}
  void launch(const Stream& s, const Call&) const override {
    launch_compiled(s, kernel, grid, few_block, {to, from}, "a sum of few terms");
  }
  std::string choice(const Call&) const override {
    return "a thread for each sum, compiled by NVRTC, " + std::to_string(grid) + " blocks";
  }
};

}  // namespace

Arg without_reduced(const Step& s, const Arg& a) {
  Arg k{a.dtype, a.layout, a.data};
  Shape shape;
  Strides strides;
  const int rank = s.in[0].layout.rank();
  const bool has_all = a.layout.rank() == rank;
  int at = 0;
  for (int axis = 0; axis < rank; ++axis) {
    const bool summed = is_summed(s, axis);
    if (!summed) shape.push_back(a.layout.shape[at]), strides.push_back(a.layout.strides[at]);
    at += has_all || !summed;
  }
  k.layout.shape = shape, k.layout.strides = strides;
  return k;
}

bool is_sum_of_few(const Step& s) {
  if (!s.op->sums || !is_float(s.in[0].dtype)) return false;
  const std::int64_t all = s.in[0].layout.numel(), sums = s.out[0].layout.numel();
  return sums >= few_block && all <= most_terms_in_all && all / sums <= most_terms &&
         s.in[0].layout.extent() < (std::int64_t{1} << 31);
}

namespace {

PlanPtr plan_sum_of_few(const Step& sum, const Gpu& gpu) {
  const Arg from = without_reduced(sum, sum.in[0]), to = without_reduced(sum, sum.out[0]);
  const Space s({&from, 1}, {&to, 1});
  const std::int64_t sums = to.layout.numel();
  std::string code = fused_library() + fused_types(compute_type(from.dtype), 1, true) +
                     "extern \"C\" __global__ void __launch_bounds__(" + digits(few_block) + ") sum_of_few(" +
                     storage(to.dtype) + "* out, const " + storage(from.dtype) + "* in) {" +
                     fused_begins_early + "  const I i = blockIdx.x * " + digits(few_block) +
                     " + threadIdx.x;\n  if (i >= (I)" + digits(sums) + ") return;\n" + indices(s, 1) +
                     "  const I at = " + offset(s, 1, 1) + ";\n  T sum = 0;\n";
  for (const std::int64_t term : f16_split_of(sum))
    code += "  sum += (T)widen(in[at + (I)" + digits(term) + "]);\n";
  code += "  out[" + offset(s, 0, 1) + "] = narrow<" + storage(to.dtype) + ">::of(sum);\n}\n";
  const auto blocks = static_cast<unsigned>((sums + few_block - 1) / few_block);
  return std::make_unique<SumOfFewPlan>(compiled(code, "sum_of_few", gpu), blocks, to.data, from.data);
}

}  // namespace

extern const FusionRule sum_of_few_rule{
    "a sum of few terms",
    [](const Upcoming& next) {
      const bool matches =
          !next.options.in_order && !next.options.batch_invariant && is_sum_of_few(next.steps[0]);
      return FusionMatch{matches ? std::size_t{1} : 0};
    },
    [](const Upcoming& next, const FusionMatch&) { return plan_sum_of_few(next.steps[0], next.gpu); }};

}  // namespace tg::cuda
