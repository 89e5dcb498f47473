// flash_attn and flash_attn_backward: checks of sequences and lengths, and the kernels that choose.cpp chose.
#include "backends/cuda/attention/choose.h"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/kernels/elements.cuh"

namespace tg::cuda {

namespace attention {

namespace {

// Sequences and lengths come from outside at every run: where they leave the tensors the run is refused.
__global__ void check_sequences(const __grid_constant__ AttentionCall x, Faults faults) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (x.cu_q && at <= x.segments) {
    for (const auto& [cu, rows] : {std::pair{x.cu_q, x.L}, std::pair{x.cu_k, x.T}}) {
      const i64 before = at > 0 ? cu[at - 1] : 0;
      if (faults.check_index(cu[at], rows + i64{1}, at))
        faults.check_index(cu[at] - before, rows + i64{1}, at);
    }
  }
  if (x.lengths && at < x.B) {
    const i64 n =
        x.lengths_are_i64 ? static_cast<const i64*>(x.lengths)[at] : static_cast<const int*>(x.lengths)[at];
    faults.check_index(n, x.T + i64{1}, at);
  }
}

void launch_checks(const Stream& s, const AttentionCall& x) {
  const i64 n = x.cu_q ? x.segments + i64{1} : x.lengths ? x.B : 0;
  if (n > 0) launch_kernel(s, {blocks_for(n, 256), 256}, check_sequences, x, s.faults);
}

void run_forward(const Stream& s, const Call& call) {
  const Choice choice(call, s.workspace);
  const AttentionCall& x = choice.x;
  launch_checks(s, x);
  if (x.B == 0 || x.H == 0 || x.L == 0) return;
  if (choice.path == Path::plain) return launch_plain_forward(s, x);
  if (!choice.split) return launch_forward(s, x);
  launch_split(s, x, *choice.split);
  launch_f32_forward(s, choice.split->in_place_of(x), choice.split->powers);
}

void run_backward(const Stream& s, const Call& call) {
  const Choice choice(call, s.workspace);
  const AttentionCall& x = choice.x;
  const Workspace& work = choice.work;
  const Powers* const powers = choice.split ? choice.split->powers : nullptr;
  launch_checks(s, x);
  if (choice.split) launch_split(s, x, *choice.split);
  launch_row_stats(s, x, work, powers);
  switch (choice.path) {
    case Path::plain:
      launch_plain_backward(s, x, work);
      break;
    case Path::f32:
      launch_f32_backward(s, choice.split->in_place_of(x), work, powers);
      break;
    case Path::narrow:
      launch_two_passes(s, x, work);
      break;
    default:
      launch_one_pass(s, x, work);
  }
  launch_bias_and_sink(s, x, work);
}

std::size_t workspace_of(const Call& call) {
  return Choice(call).bytes();
}
std::string choice_of(const Call& call) {
  return Choice(call).in_words();
}

}  // namespace

}  // namespace attention

extern const Kernel flash_attn_kernel{attention::run_forward, attention::workspace_of, nullptr,
                                      attention::choice_of};
extern const Kernel flash_attn_backward_kernel{attention::run_backward, attention::workspace_of, nullptr,
                                               attention::choice_of};

}  // namespace tg::cuda
