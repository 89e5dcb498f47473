// flash_attn, flash_attn_backward and paged_attn: checks of sequences, lengths and tables, and the kernels
// that choose.cpp chose.
#include <algorithm>

#include "backends/cuda/attention/checks.cuh"
#include "backends/cuda/attention/decoding.h"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/ropes.h"
#include "backends/cuda/attention/short_heads.h"
#include "backends/cuda/rope.h"
#include "backends/cuda/table.h"
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

// In the order of Path.
constexpr Launch *forwards[] =
    {launch_plain_forward, launch_f32_forward, launch_forward,     launch_forward, nullptr,
     launch_forward_sm90,  launch_decoding,    launch_latents_sm90},
                 *backwards[] = {launch_plain_backward, launch_f32_backward, launch_two_passes,
                                 launch_one_pass,       launch_one_pass,     launch_backward_sm90};

// Of a forward, and of a backward with ropes.
struct ForwardPlan {
  std::shared_ptr<void> zeros;  // the counters of its kernel, zero between calls
  AttentionCall::Added added = {};
  RopesBeside beside = {};
};

void run_chosen(const Stream& s, Choice c, const void* plan) {
  const auto* const forward = static_cast<const ForwardPlan*>(plan);
  void* const zeros = forward ? forward->zeros.get() : nullptr;
  if (forward && forward->added.count > 0) c.x.added = forward->added, c.x.fixed_keys = true;
  if (c.path == Path::decoding)
    c.work.turns = static_cast<int*>(zeros);
  else
    c.work.taken = static_cast<Taken*>(zeros);
  const bool is_empty = c.x.B == 0 || c.x.H == 0 || c.x.L == 0,
             decodes = c.path == Path::decoding || c.path == Path::latents;
  if (is_empty || !decodes) launch_checks(s, c.x);  // kernels of decoding check, too
  if (is_empty) return;
  if (c.split) launch_split(s, c.x, *c.split);
  forwards[static_cast<int>(c.path)](s, c.operands(), c.work, c.powers());
}

// Not with rows_alone: whether there are few heads depends on the batch.
bool is_of_short_heads(const Choice& c, const Call& call) {
  return c.path == Path::hopper && !call.rows_alone && takes_short_heads(c.x, call.gpu);
}

Ropes ropes_of(const Call& call) {
  return call.plan ? static_cast<const ForwardPlan*>(call.plan)->beside.ropes : Ropes{};
}

void run_forward(const Stream& s, const Call& call) {
  if (const Choice c(call, s.workspace); is_of_short_heads(c, call))
    return launch_short_forward(s, c.x, ropes_of(call));
  run_chosen(s, Choice(call, s.workspace), call.plan);
}
void run_paged(const Stream& s, const Call& call) {
  run_chosen(s, paged_choice(call, s.workspace), call.plan);
}

void run_backward(const Stream& s, const Call& call) {
  const Choice c(call, s.workspace);
  if (is_of_short_heads(c, call)) return launch_short_backward(s, c.x, ropes_of(call));
  launch_checks(s, c.x);
  if (c.split) launch_split(s, c.x, *c.split);
  if (c.path != Path::hopper) launch_row_stats(s, c.x, c.work, c.powers());
  const bool is_plain = c.path == Path::plain;
  if (is_plain) launch_normalize(s, c.x, c.work);
  const Ropes ropes = ropes_of(call);
  if (ropes.table)
    launch_turned_backward_sm90(s, c.x, c.work, ropes);
  else
    backwards[static_cast<int>(c.path)](s, c.operands(), c.work, c.powers());
  if (!is_plain) {
    AttentionCall to = c.x;
    if (ropes.table) to.z_q = ropes.q, to.z_k = ropes.k;
    launch_normalize(s, c.x, c.work);
    launch_far_gradients(s, to, c.work, ropes);
  }
  launch_bias_and_sink(s, c.x, c.work);
}

std::size_t workspace_of(const Call& call) {
  return Choice(call).bytes();
}
std::size_t workspace_of_paged(const Call& call) {
  return paged_choice(call).bytes();
}
std::shared_ptr<const ForwardPlan> plan_of_chosen(const Choice& c) {
  const bool takes_items = c.path == Path::hopper || c.path == Path::latents;
  const std::size_t bytes = c.path == Path::decoding ? decoding::bytes_of_counters(c.x)
                            : takes_items            ? sizeof(Taken)
                                                     : 0;
  return bytes > 0 ? std::make_shared<ForwardPlan>(ForwardPlan{zeros_on_device(bytes)}) : nullptr;
}
std::shared_ptr<const void> plan_of(const Call& call) {
  return plan_of_chosen(Choice(call));
}
std::shared_ptr<const void> plan_of_paged(const Call& call) {
  return plan_of_chosen(paged_choice(call));
}
std::string choice_of(const Call& call) {
  const Choice c(call);
  const bool is_short = is_of_short_heads(c, call);
  const Ropes r = is_short || call.attrs->as<AttentionAttrs>().backward ? ropes_of(call) : Ropes{};
  return (is_short ? "tensor cores, short sequences" : c.in_words()) + (r.of_q && r.of_k ? ", with both ropes"
                                                                        : r.table        ? ", with a rope"
                                                                                         : "");
}
std::string choice_of_paged(const Call& call) {
  return paged_choice(call).in_words();
}

}  // namespace

}  // namespace attention

std::shared_ptr<const void> plan_with_added_rows(const Step& assign, const Call& attention, bool in_pages) {
  using namespace attention;
  const Choice c = in_pages ? paged_choice(attention) : Choice(attention);
  const auto added = added_before(c, attention, assign);
  return added ? std::make_shared<ForwardPlan>(
                     ForwardPlan{zeros_on_device(decoding::bytes_of_counters(c.x)), *added})
               : nullptr;
}

std::shared_ptr<const void> plan_with_ropes(std::span<const Step> ropes, const Call& call) {
  using namespace attention;
  const Choice c(call);
  std::optional<RopesBeside> beside = ropes_beside(ropes, call);
  if (!beside) return nullptr;
  const bool takes = is_of_short_heads(c, call)
                         ? beside->ropes.pairs % 2 == 0
                         : call.attrs->as<AttentionAttrs>().backward && takes_ropes(c, beside->ropes);
  return takes ? std::make_shared<ForwardPlan>(ForwardPlan{nullptr, {}, std::move(*beside)}) : nullptr;
}

extern const Kernel flash_attn_kernel{attention::run_forward, attention::workspace_of, attention::plan_of,
                                      attention::choice_of};
extern const Kernel flash_attn_backward_kernel{attention::run_backward, attention::workspace_of, nullptr,
                                               attention::choice_of};

extern const Kernel paged_attn_kernel{attention::run_paged, attention::workspace_of_paged,
                                      attention::plan_of_paged, attention::choice_of_paged};

}  // namespace tg::cuda
