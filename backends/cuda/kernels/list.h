// The list of CUDA kernels. A file defines NAME_kernel. Only backends/cuda/runtime/kernel.cpp reads the list.
#pragma once

// clang-format off
#define TG_CUDA_KERNELS(X) \
  X(fused) X(reduced_chain) X(full) X(matmul) X(matmul_in_units) \
  X(sum) X(mean) X(sum_squares) X(prod) X(max) X(min) X(argmax) X(argmin) \
  X(softmax) X(softmax_backward) X(log_softmax) X(log_softmax_backward) X(logsumexp) \
  X(cumsum) X(top_k) X(sample) \
  X(layer_norm) X(layer_norm_backward) X(rms_norm) X(rms_norm_backward) \
  X(cross_entropy) X(cross_entropy_backward) X(linear_cross_entropy) X(adamw) X(squared_norm) X(global_norm) X(block_norms) \
  X(embedding) X(index_select) X(gather) X(index_add) X(index_assign) X(scatter_add) \
  X(concat) X(slice_assign) X(slice_at) X(arange) X(rope) \
  X(dropout) X(uniform) X(normal) X(bernoulli) X(randint) X(attention_keep_mask) \
  X(flash_attn) X(flash_attn_backward) X(paged_attn)
// clang-format on
