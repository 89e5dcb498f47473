// flash_attn, flash_attn_backward and paged_attn on CUDA: checks lengths, sequences and page tables, then
// launches the kernel that kernel_table.cpp selects.
#include <algorithm>

#include "backends/cuda/attention/decoding/decoding.h"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/ropes.h"
#include "backends/cuda/attention/stages/checks.cuh"
#include "backends/cuda/fusion/fusion.h"
#include "backends/cuda/fusion/rope.h"
#include "backends/cuda/runtime/memory.h"
#include "backends/cuda/tile/ptx_sm90.cuh"

namespace tg::cuda {

namespace attention {

namespace {

__global__ void check_inputs(const __grid_constant__ AttentionCall x, Faults faults) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ptx::let_next_kernel_begin();
#endif
  const i64 at = i64{blockIdx.x} * blockDim.x + threadIdx.x;
  if (x.cu_q && at <= x.segments) {
    for (const auto& [cu, rows] : {std::pair{x.cu_q, x.L}, std::pair{x.cu_k, x.T}}) {
      const i64 before = at > 0 ? cu[at - 1] : 0;
      if (faults.check_index(cu[at], rows + i64{1}, at))
        faults.check_index(cu[at] - before, rows + i64{1}, at);
    }
  }
  check_place(x, faults, at);
}

void launch_checks(const Stream& s, const AttentionCall& x) {
  const i64 n = std::max(x.cu_q ? x.segments + i64{1} : 0, checked_places(x));
  if (n > 0) launch_kernel(s, {blocks_for(n, 256), 256}, check_inputs, x, s.faults);
}

void launch_choice(const Stream& s, const Choice& c, const Ropes& ropes) {
  if (ropes.table)
    c.kernel->launch_with_ropes(s, c.x, c.work, ropes);
  else
    c.kernel->launch(s, c.operands(), c.work, c.powers());
}

std::string describe(const Choice& c, const Ropes& r) {
  return c.describe() + (r.of_q && r.of_k ? ", with both RoPE ops" : r.table ? ", with one RoPE op" : "");
}

using Choose = Choice(const Call& call, std::byte* base);

// Plan of flash_attn and paged_attn.
struct ForwardPlan final : KernelPlan {
  Choose* choose;
  std::shared_ptr<void> zeros;  // the kernel's counters, zero between calls
  AttentionCall::Added added = {};
  FusedRopes fused = {};

  explicit ForwardPlan(Choose* c) : choose(c) {}
  void launch(const Stream& s, const Call& call) const override {
    Choice c = choose(call, s.workspace);
    if (added.count > 0) c.x.added = added, c.x.fixed_keys = true;
    if (c.family() == KernelFamily::decoding)
      c.work.counters = static_cast<int*>(zeros.get());
    else
      c.work.taken = static_cast<Taken*>(zeros.get());
    const bool is_empty = c.x.B == 0 || c.x.H == 0 || c.x.L == 0;
    if (is_empty || !c.decodes()) launch_checks(s, c.x);  // decoding kernels do these checks themselves
    if (is_empty) return;
    if (c.split) launch_split(s, c.x, *c.split);
    launch_choice(s, c, fused.ropes);
  }
  std::size_t workspace(const Call& call) const override { return choose(call, nullptr).bytes(); }
  std::string choice(const Call& call) const override { return describe(choose(call, nullptr), fused.ropes); }
};

struct BackwardPlan final : KernelPlan {
  FusedRopes fused = {};

  void launch(const Stream& s, const Call& call) const override {
    const Choice c = choice_of(call, s.workspace);
    const Ropes& ropes = fused.ropes;
    if (c.family() == KernelFamily::short_heads) return launch_choice(s, c, ropes);  // computes u too
    launch_checks(s, c.x);
    if (c.split) launch_split(s, c.x, *c.split);
    if (c.family() != KernelFamily::hopper) launch_row_stats(s, c.x, c.work, c.powers());
    const bool is_plain = c.family() == KernelFamily::plain;
    if (is_plain) launch_normalize(s, c.x, c.work);
    launch_choice(s, c, ropes);
    if (!is_plain) {
      AttentionCall to = c.x;
      if (ropes.table) to.z_q = ropes.q, to.z_k = ropes.k;
      launch_normalize(s, c.x, c.work);
      launch_far_gradients(s, to, c.work, ropes);
    }
    launch_bias_and_sink(s, c.x, c.work);
  }
  std::size_t workspace(const Call& call) const override { return choice_of(call).bytes(); }
  std::string choice(const Call& call) const override { return describe(choice_of(call), fused.ropes); }
};

template <Choose* choose>
PlanPtr plan_forward(const Call& call) {
  const Choice c = choose(call, nullptr);
  const bool takes_items = c.family() == KernelFamily::hopper || c.family() == KernelFamily::latents;
  const std::size_t bytes = c.family() == KernelFamily::decoding ? decoding::bytes_of_counters(c.x)
                            : takes_items                        ? sizeof(Taken)
                                                                 : 0;
  auto plan = std::make_unique<ForwardPlan>(choose);
  if (bytes > 0) plan->zeros = zeros_on_device(bytes);
  return plan;
}

// A plan that also computes `assign`; null if the kernel does not support it.
PlanPtr plan_with_added_rows(const Step& assign, const Call& attention, bool in_pages) {
  Choose* const choose = in_pages ? &paged_choice : &choice_of;
  const Choice c = choose(attention, nullptr);
  const auto added = added_before(c, attention, assign);
  if (!added) return nullptr;
  auto plan = std::make_unique<ForwardPlan>(choose);
  plan->zeros = zeros_on_device(decoding::bytes_of_counters(c.x)), plan->added = *added;
  return plan;
}

// A plan for a flash_attn with the one or two RoPE steps before it, or for a flash_attn_backward with the
// RoPE steps after it. Results are bitwise identical to separate steps. The plan is null in two cases: the
// kernel does not support these steps, or one step would overwrite memory that another step still reads.
PlanPtr plan_with_ropes(std::span<const Step> ropes, const Call& call) {
  const Choice c = choice_of(call);
  std::optional<FusedRopes> fused = fused_ropes(ropes, call);
  if (!fused || !computes_ropes(c, fused->ropes)) return nullptr;
  const auto with_them = [&](auto plan) -> PlanPtr {
    plan->fused = std::move(*fused);
    return plan;
  };
  return c.kernel->backward ? with_them(std::make_unique<BackwardPlan>())
                            : with_them(std::make_unique<ForwardPlan>(&choice_of));
}

FusionMatch ropes_before(const Upcoming& next) {
  std::size_t n = 0;
  while (n < 2 && n < next.steps.size() && rope_of(*next.steps[n].op, next.steps[n].attrs)) ++n;
  if (n == 0 || n == next.steps.size()) return {};
  const Step& attention = next.steps[n];
  const bool matches =
      std::ranges::all_of(next.steps.first(n), [&](const Step& s) { return is_rope_for(s, attention); });
  return matches ? FusionMatch{n + 1, n} : FusionMatch{};
}

FusionMatch ropes_after(const Upcoming& next) {
  const Step& attention = next.steps[0];
  std::size_t n = 0;
  while (n < 2 && n + 1 < next.steps.size() && is_rope_of(attention, next.steps[n + 1])) ++n;
  for (const Step& rope : next.steps.subspan(1, n))  // the gradient before RoPE is not stored
    if (attention.reads[rope.in[0].data == attention.out[0].data ? 0 : 1] > 1) return {};
  return n > 0 ? FusionMatch{n + 1} : FusionMatch{};
}

}  // namespace

}  // namespace attention

extern const Kernel flash_attn_kernel{&attention::plan_forward<&attention::choice_of>};
extern const Kernel flash_attn_backward_kernel{
    [](const Call&) -> PlanPtr { return std::make_unique<attention::BackwardPlan>(); }};
extern const Kernel paged_attn_kernel{&attention::plan_forward<&attention::paged_choice>};

extern const FusionRule added_rows_rule{
    "cache append and attention",
    [](const Upcoming& next) {
      return next.is_next(appends_cache_for, 1) ? FusionMatch{2, 1} : FusionMatch{};
    },
    [](const Upcoming& next, const FusionMatch&) {
      const Step& attention = next.steps[1];
      return attention::plan_with_added_rows(next.steps[0], next.call(1),
                                             paged_attention_of(*attention.op, attention.attrs) != nullptr);
    }};

extern const FusionRule ropes_before_attention_rule{
    "RoPE and attention", &attention::ropes_before, [](const Upcoming& next, const FusionMatch& match) {
      return attention::plan_with_ropes(next.steps.first(match.made_by), next.call(match.made_by));
    }};

extern const FusionRule ropes_after_attention_rule{
    "attention gradient and RoPE", &attention::ropes_after,
    [](const Upcoming& next, const FusionMatch& match) {
      return attention::plan_with_ropes(next.steps.subspan(1, match.count - 1), next.call(0));
    }};

}  // namespace tg::cuda
