// The list of ops. A file of this folder defines NAME_op. Only registry.cpp reads the list, so that adding an
// op recompiles nothing else. An op that is not in it is not tested, benchmarked or documented.
#pragma once

// clang-format off
#define TG_OPS(X) \
  X(add) X(sub) X(mul) X(div) X(pow) X(maximum) X(minimum) X(neg) X(abs) X(sign) X(sqrt) X(rsqrt) X(exp) X(log) \
  X(sin) X(cos) X(tanh) X(erf) X(sigmoid) X(relu) X(silu) X(gelu) X(gelu_tanh) \
  X(silu_slope) X(gelu_slope) X(gelu_tanh_slope) X(where) X(equal) X(not_equal) \
  X(less) X(less_equal) X(greater) X(greater_equal) X(logical_and) X(logical_or) X(logical_not) \
  X(cast) X(copy) X(contiguous) X(stop_gradient) \
  X(permute) X(view) X(expand) \
  X(slice) X(slice_assign) X(slice_at) \
  X(split) X(concat) \
  X(embedding) X(index_select) X(index_add) X(index_assign) \
  X(gather) X(scatter_add) X(top_k) X(sample) X(cumsum) X(arange) \
  X(full) \
  X(sum) X(mean) X(sum_squares) X(prod) X(max) X(min) X(argmax) X(argmin) \
  X(softmax) X(softmax_backward) X(log_softmax) X(log_softmax_backward) X(logsumexp) \
  X(layer_norm) X(layer_norm_backward) X(rms_norm) X(rms_norm_backward) \
  X(cross_entropy) X(cross_entropy_backward) X(linear_cross_entropy) \
  X(rope) \
  X(dropout) X(uniform) X(normal) X(bernoulli) X(randint) \
  X(adamw) X(squared_norm) X(global_norm) X(block_norms) \
  X(matmul) X(matmul_in_units) \
  X(flash_attn) X(flash_attn_backward) X(attention_keep_mask) X(paged_attn) \
  X(sum_ranks) X(spread_ranks) X(gather_ranks) X(scatter_sum) X(exchange_ranks) X(shift_ranks) X(own_piece)
// clang-format on
