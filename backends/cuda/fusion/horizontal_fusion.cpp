// Horizontal fusion: one block computes several steps with few elements. For few elements, a launch takes
// longer than the computation. Examples are the steps between a loss and its gradient.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/fusion/fusion.h"
#include "backends/cuda/jit/code.h"
#include "backends/cuda/jit/fused_source.h"
#include "core/compile/lower.h"

namespace tg::cuda {

namespace {

constexpr std::int64_t most_small_numbers = 4096;  // per step
constexpr std::size_t most_steps = 16;

bool is_small_fused(const Step& s) {
  if (s.op != &fused_op) return false;
  const std::int64_t n = s.out[0].layout.numel();
  return n > 0 && n <= most_small_numbers;
}
bool is_small_sum(const Step& s) {
  if (!s.op->sums || s.out[0].layout.numel() != 1) return false;
  const Arg& x = s.in[0];
  return is_float(x.dtype) && x.layout.numel() > 0 && x.layout.numel() <= most_small_numbers;
}
std::int64_t numbers_of(const Step& s) {
  return (s.op == &fused_op ? s.out[0] : s.in[0]).layout.numel();
}

// Returns a power of two, so that sums can be reduced in halves.
int threads_for(std::span<const Step> steps) {
  int threads = 32;
  for (const Step& s : steps)
    while (threads < 1024 && threads < numbers_of(s)) threads *= 2;
  return threads;
}

std::string parameters(const Step& s) {
  std::string code;
  const auto add = [&](const Arg& a, const std::string& name, const char* before) {
    code += (code.empty() ? "" : ", ") + std::string(before) + storage(a.dtype) + "* " + name;
  };
  for (std::size_t o = 0; o < s.out.size(); ++o) add(s.out[o], numbered("out", o), "");
  for (std::size_t i = 0; i < s.in.size(); ++i) add(s.in[i], numbered("in", i), "const ");
  return code;
}

// Returns the function of a step, in a separate namespace.
std::string source_of(const Step& s, std::size_t nth, int threads) {
  const bool narrow = reach_of(s.in, s.out) + most_small_numbers < (1ll << 31), chain = s.op == &fused_op;
  const DType compute = chain ? s.attrs.as<FusedAttrs>().compute : compute_type(s.in[0].dtype);
  const std::string step = digits(threads);
  std::string code = "namespace " + numbered("step", nth) + " {\n" + fused_types(compute, 1, narrow) +
                     "__device__ void run(bool stopped, " + parameters(s) + ") {\n";
  if (chain) {
    const int times = static_cast<int>(std::min<std::int64_t>(4, (numbers_of(s) + threads - 1) / threads));
    code +=
        fused_loop(s.attrs.as<FusedAttrs>(), Space(s.in, s.out), 1, times, s.in, s.out, "threadIdx.x", step);
  } else {
    // The sum uses as many threads as its length requires, independently of the block size.
    const std::string own = digits(threads_for({&s, 1}));
    code += "  __shared__ T part[" + own + "];\n  if (threadIdx.x < " + own + ") {\n  T sum = 0;\n" +
            sum_loop(Space({}, {s.in.data(), 1}), "threadIdx.x", own) +
            "  part[threadIdx.x] = sum;\n  }\n  for (int half = " + own +
            " / 2; half > 0; half /= 2) {\n    __syncthreads();\n"
            "    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];\n  }\n"
            "  if (threadIdx.x == 0) out0[0] = narrow<" +
            storage(s.out[0].dtype) + ">::of(part[0]);\n";
  }
  return code + "}\n}\n";
}

struct HorizontalFusionPlan final : KernelPlan {
  cudaKernel_t kernel = nullptr;
  int threads = 0;
  std::size_t steps = 0;
  std::vector<const void*> operands;

  void launch(const Stream& s, const Call&) const override {
    const void* fault = &s.faults.fault->step;
    std::vector<const void*> data{fault};
    data.insert(data.end(), operands.begin(), operands.end());
    launch_compiled(s, kernel, 1, static_cast<unsigned>(threads), std::move(data), "fused small kernels");
  }
  std::string choice(const Call&) const override {
    return std::to_string(steps) +
           " steps in one kernel (horizontal fusion), compiled by NVRTC, a block of " +
           std::to_string(threads) + " threads";
  }
};

// Returns the number of leading steps that one block computes as fast as separate kernels would. Each step
// has at most 4,096 elements. It is elementwise or a sum with a single result. A single step is counted only
// if it is a sum. The order of additions in a sum depends only on the operand. It differs from the order in
// the sum kernel. If `in_their_order`, sums are therefore excluded.
std::size_t horizontal_fusion_together(std::span<const Step> steps, bool in_their_order) {
  std::size_t n = 0;
  bool sums = false;
  while (n < steps.size() && n < most_steps &&
         (is_small_fused(steps[n]) || (!in_their_order && is_small_sum(steps[n]))))
    sums = sums || is_small_sum(steps[n]), ++n;
  return n > 1 || sums ? n : 0;
}

PlanPtr plan_horizontal_fusion(std::span<const Step> steps, const Gpu& gpu) {
  auto plan = std::make_unique<HorizontalFusionPlan>();
  plan->threads = threads_for(steps), plan->steps = steps.size();
  std::string code = fused_library(), parameters_of_all, calls;
  std::size_t nth = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& s = steps[i];
    code += source_of(s, i, plan->threads);
    calls += (i > 0 ? "  __syncthreads();\n  " : "  ") + numbered("step", i) + "::run(stopped";
    const auto add = [&](const Arg& a, const char* before) {
      const std::string name = numbered("p", nth++);
      parameters_of_all += ", " + std::string(before) + storage(a.dtype) + "* " + name;
      calls += ", " + name;
      plan->operands.push_back(a.data);
    };
    for (const Arg& a : s.out) add(a, "");
    for (const Arg& a : s.in) add(a, "const ");
    calls += ");\n";
  }
  code += "extern \"C\" __global__ void __launch_bounds__(" + digits(plan->threads) +
          ") horizontal_fusion(const int* fault" + parameters_of_all + ") {" + fused_begins_early +
          fused_stopped + calls + "}\n";
  plan->kernel = compiled(code, "horizontal_fusion", gpu);
  return plan;
}

}  // namespace

// The last step is excluded if it is a sum that the next GEMM's kernel computes.
extern const FusionRule horizontal_fusion_rule{
    "horizontal fusion",
    [](const Upcoming& next) {
      const bool in_order = next.options.in_order || next.options.batch_invariant;
      const std::size_t n = horizontal_fusion_together(next.steps, in_order);
      return FusionMatch{n == 0 || !next.is_next(is_sum_for, n)
                             ? n
                             : horizontal_fusion_together(next.steps.first(n - 1), in_order)};
    },
    [](const Upcoming& next, const FusionMatch& match) {
      return plan_horizontal_fusion(next.steps.first(match.count), next.gpu);
    }};

}  // namespace tg::cuda
