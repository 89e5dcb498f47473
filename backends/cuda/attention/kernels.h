// The launches that flash_attn.cu chooses among.
#pragma once

#include "backends/cuda/attention/workspace.h"

namespace tg::cuda::attention {

// What the backward starts from: u, ξ and the keys of each tile of queries. `powers` of split operands, or
// null. In row_stats.cu.
void launch_row_stats(const Stream& s, const AttentionCall& x, const Workspace& work, const Powers* powers);

// f32 operands as f16 terms, in split_terms.cu.
void launch_split(const Stream& s, const AttentionCall& x, const SplitOperands& split);

// Any dtype and head size, in plain.cu.
void launch_plain_forward(const Stream& s, const AttentionCall& x);
void launch_plain_backward(const Stream& s, const AttentionCall& x, const Workspace& work);
// z_bias and z_sink, in bias_gradient.cu.
void launch_bias_and_sink(const Stream& s, const AttentionCall& x, const Workspace& work);

// bf16 and f16 on tensor cores, in forward_sm80.cu, backward_sm80.cu (heads to 128), and
// backward_one_pass_sm80.cu (and wide heads).
void launch_forward(const Stream& s, const AttentionCall& x);
void launch_two_passes(const Stream& s, const AttentionCall& x, const Workspace& work);
void launch_one_pass(const Stream& s, const AttentionCall& x, const Workspace& work);
// f32 on tensor cores, whose operands are f16 terms, in f32_sm80.cu.
void launch_f32_forward(const Stream& s, const AttentionCall& x, const Powers* powers);
void launch_f32_backward(const Stream& s, const AttentionCall& x, const Workspace& work,
                         const Powers* powers);

}  // namespace tg::cuda::attention
