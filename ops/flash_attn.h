// flash_attn computes attention without storing the attention matrix (FlashAttention-2) [Stratos,
// FlashAttention §D]. This header has the op, its options and the attributes that its kernels read.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include <tilegrad/core/base/attrs.h>
#include <tilegrad/core/graph/tensor.h>
#include <tilegrad/ops/attention_expression.h>

namespace tg {

struct Op;
struct Operand;

// The choice of kernels for flash_attn and its backward. All kernels give the same results up to rounding.
enum class AttentionKernels {
  best,          // the fastest kernels that support the call
  plain,         // FMA kernels, which support every call; the only choice on the CPU
  tensor_cores,  // tensor core kernels for any GPU, also on Hopper
  wgmma,         // warpgroup kernels for Hopper
};
// The name of an enumerator, for example "tensor_cores".
constexpr std::string_view name_of(AttentionKernels k) {
  constexpr std::string_view names[] = {"best", "plain", "tensor_cores", "wgmma"};
  return names[static_cast<int>(k)];
}

// Options of flash_attn(), standard_attn() and ring_attention(). The scores of a query and its visible keys
// are A = score(softcap(scale·q·kᵀ)) + bias, where `score` is a function of the caller. With ξ = log(Σ exp A
// + exp sink), the weights are P = exp(A − ξ), and the output is o = dropout(P)·v. A query without keys has o
// = 0 and no gradient; its ξ is −∞, or sink if there is a sink. L and T are the numbers of queries and keys.
struct AttentionOptions {
  // How a causal mask is aligned if L and T differ.
  enum Alignment {
    bottom_right,  // the last query attends to all keys, as in FlashAttention
    top_left       // the first query attends to the first key only, as with PyTorch's is_causal
  };

  std::optional<double> scale = {};    // factor of q·kᵀ; default: 1/√d
  bool causal = false;                 // query i attends to keys t ≤ i + T − L, or t ≤ i with top_left
  Alignment alignment = bottom_right;  // of the causal mask; top_left requires `causal`
  std::int64_t window_left = -1;   // sliding window: t − (i + T − L) ≥ −window_left; −1: no limit
  std::int64_t window_right = -1;  // sliding window: t − (i + T − L) ≤ window_right; −1: no limit
  // Broadcasts to [B, H, L, T]. A floating bias is added to the scores; −∞ masks a key. In a boolean bias,
  // true means that the query attends to the key.
  Tensor bias = {};
  double softcap = 0;  // scores become cap·tanh(s / cap) before the bias; 0: no softcap
  Tensor sink = {};    // [H]: an additional logit that is only in the softmax denominator
  // Boundaries of packed sequences, i32 [n + 1] with B = 1, as in FlashAttention's varlen functions. Sequence
  // s has the queries cu_seqlens_q[s] … cu_seqlens_q[s + 1] − 1. L and T above are then the sizes of the
  // sequence. If cu_seqlens_k is absent, keys have the same boundaries. Cannot be combined with kv_lengths.
  Tensor cu_seqlens_q = {};
  // Boundaries of packed keys, i32 [n + 1]. Requires cu_seqlens_q.
  Tensor cu_seqlens_k = {};
  Tensor kv_lengths = {};  // i32 or i64 [B], 0 … T: number of keys of each batch entry; replaces T above
  double dropout = 0;  // probability of dropping an element of P, in [0, 1); ξ is computed without dropout
  // Allows the backward to sum z_q in any order if that is faster. z_q may then differ slightly from run to
  // run. On CUDA, tensor core kernels use this option and then need B·H·L·d floats of memory.
  bool nondeterministic = false;
  // Kernels of the forward and the backward. If these kernels do not support a call in the program, compile()
  // throws DeviceError with the reason. standard_attn() ignores this option.
  AttentionKernels kernels = AttentionKernels::best;
  ScoreFunction score = {};  // changes the capped scores (ops/attention_expression.h); empty: no change
  ScoreFunction mask = {};   // whether a pair is visible, besides the other options; empty: always
};

// Results of flash_attn() and of its variants.
struct AttentionResult {
  Tensor o;    // [B, H, L, dv]; stored as [B, L, H, dv], so heads merge as a view
  Tensor lse;  // ξ [B, H, L], f64 for f64 and f32 otherwise; differentiable
};

// Computes scaled dot-product attention: q [B, H, L, d], k [B, Hk, T, d], v [B, Hk, T, dv]. All have the same
// floating dtype and any strides. If the last axis of an input is not contiguous, the input is copied. H is a
// multiple of Hk, and head h reads key head h / (H / Hk). Throws ShapeError or DTypeError for other operands,
// and Error for options out of range. With default options it equals
// torch.nn.functional.scaled_dot_product_attention.
AttentionResult flash_attn(TensorArg q, TensorArg k, TensorArg v, const AttentionOptions& options = {});
// Same as flash_attn(), computed by simpler ops that store [B, H, L, T] matrices [Stratos, FlashAttention eq.
// 4-5].
AttentionResult standard_attn(TensorArg q, TensorArg k, TensorArg v, const AttentionOptions& options = {});

// Returns the attention weights P = exp(A − ξ) [B, H, L, T] of a recorded flash_attn(). The argument is a
// result of that call. Simpler ops compute P without dropout, in the dtype of ξ, and P is stored in memory.
// The sum of a row is 1 minus the weight of the sink, or 0 if the query has no keys. Throws Error for a
// tensor that is not a result of flash_attn().
Tensor attention_weights(TensorArg result);

// Attributes of the ops flash_attn and flash_attn_backward. The backward returns z_q, z_k, z_v and, if
// needed, z_bias and z_sink. AttentionOptions explains the other fields.
struct AttentionAttrs {
  double scale = 1;                                  // factor of q·kᵀ, with the default resolved
  bool causal = false, top_left = false;             // causal mask and its alignment
  std::int64_t window_left = -1, window_right = -1;  // sliding window; −1: no limit
  double softcap = 0, dropout = 0;                   // as in AttentionOptions
  std::int64_t stream = 0;                           // number of the random node
  // which optional operands exist; packed: cu_seqlens
  bool has_bias = false, has_sink = false, packed = false, has_lengths = false;
  bool nondeterministic = false;                      // as in AttentionOptions
  AttentionKernels kernels = AttentionKernels::best;  // as in AttentionOptions
  // for the backward: the optional operand and results
  bool backward = false, has_z_lse = false, needs_z_bias = false, needs_z_sink = false;
  bool has_lse_rest = false;  // a forward also returns the rounding error of ξ
  // The score and mask functions; null: none. Their captured tensors are the last operands.
  std::shared_ptr<const AttentionExpression> expression = {};
  // The backward returns a gradient of captured tensor k if bit k is set, in the order of the tensors.
  std::int64_t needs_z_captured = 0;
  // Number of captured tensors.
  int captured() const { return expression ? expression->captured : 0; }
  // Lists the fields for printing and hashing (core/base/attrs.h).
  void fields(auto&& field) const {
    field("scale", scale, scale), field("causal", causal, false), field("top_left", top_left, false);
    field("window_left", window_left, -1), field("window_right", window_right, -1);
    field("softcap", softcap, 0), field("dropout", dropout, 0), field("stream", stream, stream);
    field("bias", has_bias, false), field("sink", has_sink, false), field("packed", packed, false);
    field("lengths", has_lengths, false), field("nondeterministic", nondeterministic, false);
    field("kernels", std::string(name_of(kernels)), std::string("best"));
    field("backward", backward, false), field("z_lse", has_z_lse, false);
    field("z_bias", needs_z_bias, false), field("z_sink", needs_z_sink, false);
    field("lse_rest", has_lse_rest, false);
    const std::string none;
    field("score", expression ? expression->score_text : none, none);
    field("mask", expression ? expression->mask_text : none, none);
    field("z_captured", needs_z_captured, 0);
  }
};

// The attributes of a node or step that computes flash_attn; null for other ops, including the backward.
const AttentionAttrs* attention_of(const Op& op, const Attrs& attrs);

// The attributes of a node or step that computes flash_attn_backward; null for other ops.
const AttentionAttrs* attention_backward_of(const Op& op, const Attrs& attrs);

// Attributes of the op attention_keep_mask, which returns the elements of P that dropout keeps, as booleans.
struct KeepMaskAttrs {
  Shape shape;          // [B, H, L, T]
  double dropout;       // probability of dropping an element
  std::int64_t stream;  // number of the random node
  // Lists the fields for printing and hashing.
  void fields(auto&& field) const {
    field("shape", shape), field("dropout", dropout), field("stream", stream, stream);
  }
};

namespace detail {

// The operands by name, null if absent. X is Tensor, Operand or Arg.
template <class X>
struct AttentionOperands {
  // Assigns the operands of a call with these attributes.
  [[gnu::always_inline]] AttentionOperands(std::span<const X> in, const AttentionAttrs& a) {
    std::size_t at = 0;
    const auto take = [&](bool there) { return there ? &in[at++] : nullptr; };
    q = take(true), k = take(true), v = take(true);
    o = take(a.backward), lse = take(a.backward), z_o = take(a.backward), z_lse = take(a.has_z_lse);
    bias = take(a.has_bias), sink = take(a.has_sink);
    cu_q = take(a.packed), cu_k = take(a.packed), lengths = take(a.has_lengths);
    rng = take(a.dropout > 0);
    captured = in.data() + at;
  }
  // o, lse, z_o and z_lse are operands of the backward only. captured: the first of the captured tensors.
  const X *q, *k, *v, *o, *lse, *z_o, *z_lse, *bias, *sink, *cu_q, *cu_k, *lengths, *rng, *captured;
};

// Results of flash_attn_with_rest(): the results of flash_attn() and the rounding error of ξ, in f64 or f32.
// With this error, results for parts of the keys can be merged even if scores are large. `rest` has no
// gradient.
struct SplitAttentionResult {
  Tensor o, lse, rest;  // as in AttentionResult, and the rounding error of ξ
};
// Same as flash_attn(), but also returns the rounding error of ξ.
SplitAttentionResult flash_attn_with_rest(TensorArg q, TensorArg k, TensorArg v,
                                          const AttentionOptions& options);

// Throws ShapeError unless the number of query heads is a multiple of the number of key heads.
void check_heads(std::int64_t heads, std::int64_t key_heads);
// Throws DTypeError or ShapeError unless the sink is [H] in the dtype of q.
void check_sink(const Operand& sink, const Operand& q);
// Returns 1/√d, the scale of a call that does not specify one.
double default_scale(const Tensor& q);

// Op::decompose of flash_attn, in standard_attn.cpp.
std::vector<Tensor> decompose_attention(std::span<const Tensor> in, const Attrs& attrs);
// Op::decompose of flash_attn_backward, in standard_attn.cpp.
std::vector<Tensor> decompose_attention_backward(std::span<const Tensor> in, const Attrs& attrs);

}  // namespace detail

}  // namespace tg
