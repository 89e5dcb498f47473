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
  const AttentionCall x = call_of(call);
  launch_checks(s, x);
  if (x.B == 0 || x.H == 0 || x.L == 0) return;
  switch (forward_path(x, s.gpu)) {
    case Path::f32: {
      const SplitOperands split(x, false, s.workspace);
      launch_split(s, x, split);
      return launch_f32_forward(s, split.in_place_of(x), split.powers);
    }
    case Path::narrow:
      return launch_forward(s, x);
    case Path::wide:
      return launch_wide_forward(s, x);
    default:
      return launch_plain_forward(s, x);
  }
}

void run_backward(const Stream& s, const Call& call) {
  const AttentionCall x = call_of(call);
  const Workspace work = workspace_of(x, s.gpu, s.workspace);
  const Path path = backward_path(x, s.gpu);
  launch_checks(s, x);
  if (path == Path::f32) {
    const SplitOperands split(x, true, s.workspace + work.bytes);
    launch_split(s, x, split);
    launch_row_stats(s, x, work, split.powers);
    launch_f32_backward(s, split.in_place_of(x), work, split.powers);
  } else {
    launch_row_stats(s, x, work, nullptr);
    if (path == Path::plain)
      launch_plain_backward(s, x, work);
    else if (path == Path::one_pass)
      launch_one_pass(s, x, work);
    else if (path == Path::wide)
      launch_wide_key_gradients(s, x, work), launch_wide_query_gradients(s, x, work);
    else
      launch_backward(s, x, work);
  }
  launch_bias_and_sink(s, x, work);
}

std::size_t forward_workspace(const Call& call) {
  return forward_bytes(call_of(call), call.gpu);
}
std::size_t backward_workspace(const Call& call) {
  return backward_bytes(call_of(call), call.gpu);
}
std::string forward_choice(const Call& call) {
  const AttentionCall x = call_of(call);
  return in_words(forward_path(x, call.gpu), x);
}
std::string backward_choice(const Call& call) {
  const AttentionCall x = call_of(call);
  return in_words(backward_path(x, call.gpu), x);
}

}  // namespace

}  // namespace attention

extern const Kernel flash_attn_kernel{&attention::run_forward, &attention::forward_workspace, nullptr,
                                      &attention::forward_choice};
extern const Kernel flash_attn_backward_kernel{&attention::run_backward, &attention::backward_workspace,
                                               nullptr, &attention::backward_choice};

}  // namespace tg::cuda
