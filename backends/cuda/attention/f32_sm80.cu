// Forward and backward of f32 on tensor cores, from operands that are f16 terms (split_terms.cu): of two with
// the error of f32, of one rounded to TF32's 10 bits of fraction.
#include "backends/cuda/attention/backward_two_passes_sm80.cuh"
#include "backends/cuda/attention/forward_sm80.cuh"

namespace tg::cuda::attention {

namespace {

// Calls f with the kind of numbers, the head size and the options as constants.
template <class F>
void with_split(const AttentionCall& x, F&& f) {
  with_size(x, [&](auto size) {
    with_options(x, [&](auto options) {
      x.tf32 ? f(constant<one_term>(), size, options) : f(constant<two_terms>(), size, options);
    });
  });
}

}  // namespace

void launch_f32_forward(const Stream& s, const AttentionCall& x, const Powers* powers) {
  with_split(x, [&](auto numbers, auto size, auto options) {
    forward::launch<__half, float, numbers, size, size, options>(s, x, powers);
  });
}

void launch_f32_backward(const Stream& s, const AttentionCall& x, const Workspace& work,
                         const Powers* powers) {
  with_split(x, [&](auto numbers, auto size, auto options) {
    two_passes::launch_passes<__half, float, numbers, size, options>(s, x, work, powers);
  });
}

}  // namespace tg::cuda::attention
