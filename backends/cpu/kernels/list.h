// The list of CPU kernels. NAME_kernel is defined in a file of this folder. Only set.cpp reads the list.
// (Pointwise ops are not kernels but rows of the table in pointwise.cpp.)
#pragma once

// clang-format off
#define TG_CPU_KERNELS(X) \
  X(full) X(fused) \
  X(slice_assign) X(slice_at) X(concat) X(embedding) X(index_select) X(index_add) X(index_assign) \
  X(gather) X(scatter_add) X(top_k) X(sample) X(cumsum) X(arange) \
  X(sum) X(mean) X(sum_squares) X(prod) X(max) X(min) \
  X(argmax) X(argmin) \
  X(softmax) X(softmax_backward) X(log_softmax) X(log_softmax_backward) X(logsumexp) \
  X(layer_norm) X(layer_norm_backward) X(rms_norm) X(rms_norm_backward) \
  X(cross_entropy) X(cross_entropy_backward) X(linear_cross_entropy) \
  X(rope) \
  X(dropout) X(uniform) X(normal) X(bernoulli) X(randint) \
  X(adamw) X(squared_norm) X(global_norm) X(block_norms) \
  X(matmul) X(matmul_in_units) \
  X(flash_attn) X(flash_attn_backward) X(attention_keep_mask) X(paged_attn) \
  X(sum_ranks) X(gather_ranks) X(scatter_sum) X(exchange_ranks) X(shift_ranks) X(own_piece)
// clang-format on
