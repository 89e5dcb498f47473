// flash_attn: attention without the attention matrix (FlashAttention-2) [Stratos, FlashAttention §D], its
// options, and the attributes that its kernels read.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include <tilegrad/core/base/attrs.h>
#include <tilegrad/core/graph/tensor.h>

namespace tg {

struct Op;
struct Operand;

// Which kernels compute flash_attn and its backward. All give the same numbers up to rounding.
enum class AttentionKernels {
  best,          // the fastest that take the call
  plain,         // multiply-adds: they take every call, and are all that the CPU has
  tensor_cores,  // those for the tensor cores of any GPU, on Hopper too
  wgmma,         // Hopper's own
};
constexpr std::string_view name_of(AttentionKernels k) {
  constexpr std::string_view names[] = {"best", "plain", "tensor_cores", "wgmma"};
  return names[static_cast<int>(k)];
}

// A = softcap(scale·q·kᵀ) + bias for the keys a query may see, P = exp(A − ξ), o = dropout(P)·v, with
// ξ = log(Σ exp A + exp sink). A query that sees no key gets o = 0, ξ = −∞ (the sink's value if there is
// one) and no gradient.
struct AttentionOptions {
  enum Alignment { bottom_right, top_left };

  std::optional<double> scale = {};                  // default 1/√d
  bool causal = false;                               // query i sees keys t ≤ i + T − L (bottom-right), or
  Alignment alignment = bottom_right;                // t ≤ i with top_left
  std::int64_t window_left = -1, window_right = -1;  // −left ≤ t − (i + T − L) ≤ right; -1: no bound
  Tensor bias = {};  // floating: added to the scores, −∞ masks; boolean: true where a query may see a key.
                     // Broadcasts to [B, H, L, T]
  double softcap = 0;  // cap·tanh(s / cap) before the bias; 0: none
  Tensor sink = {};    // [H]: one more logit in the denominator, without a value
  Tensor cu_seqlens_q = {},
         cu_seqlens_k = {};  // i32 [n + 1], B = 1: sequence s is queries
                             // cu_seqlens_q[s] … cu_seqlens_q[s + 1] − 1, likewise keys (the
                             // same as queries if left out); each with its own L and T above
  Tensor kv_lengths = {};    // i32 or i64 [B], 0 … T: keys of each row; replaces T above
  double dropout = 0;        // of P, in [0, 1); ξ is computed without dropout
  // The backward may add the terms of z_q in any order if that is faster (CUDA: on tensor cores; it needs
  // B·H·L·d floats of memory). The last bits of z_q then differ from run to run.
  bool nondeterministic = false;
  // Of the forward and of its backward. compile() throws DeviceError, with the reason, if those kernels
  // cannot compute one of the two that the program has. standard_attn has no kernels of its own and ignores
  // it.
  AttentionKernels kernels = AttentionKernels::best;
};

struct AttentionResult {
  Tensor o;    // [B, H, L, dv], in memory [B, L, H, dv]: merging heads is a view
  Tensor lse;  // ξ [B, H, L], f64 for f64 and else f32; differentiable
};

// q [B, H, L, d], k [B, Hk, T, d], v [B, Hk, T, dv], one floating dtype, any strides (an input whose last
// axis is not contiguous is copied). H is a multiple of Hk; head h reads key head h / (H / Hk).
AttentionResult flash_attn(TensorArg q, TensorArg k, TensorArg v, const AttentionOptions& options = {});
// The same numbers by [Stratos, FlashAttention eq. 4-5]: [B, H, L, T] matrices in memory, in plain ops.
AttentionResult standard_attn(TensorArg q, TensorArg k, TensorArg v, const AttentionOptions& options = {});

// P = exp(A − ξ) [B, H, L, T] of a recorded flash_attn, one of whose results is the argument. It is computed
// in plain ops, in memory, before dropout and in the dtype of ξ. Rows add up to 1, minus the weight of a
// sink, and are 0 for a query that sees no key. Throws Error for a tensor that is not a result of flash_attn.
Tensor attention_weights(TensorArg result);

// Attributes of flash_attn, and of flash_attn_backward, which returns z_q, z_k, z_v (z_bias) (z_sink).
struct AttentionAttrs {
  double scale = 1;
  bool causal = false, top_left = false;
  std::int64_t window_left = -1, window_right = -1;
  double softcap = 0, dropout = 0;
  std::int64_t stream = 0;  // the random node's number
  bool has_bias = false, has_sink = false, packed = false, has_lengths = false;
  bool nondeterministic = false;
  AttentionKernels kernels = AttentionKernels::best;
  bool backward = false, has_z_lse = false, needs_z_bias = false, needs_z_sink = false;
  bool has_lse_rest = false;  // of a forward: a third result, ξ minus its rounded value
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
  }
};

// The attributes of a node or step that computes flash_attn; null for other ops, its backward too.
const AttentionAttrs* attention_of(const Op& op, const Attrs& attrs);

// The same of flash_attn_backward.
const AttentionAttrs* attention_backward_of(const Op& op, const Attrs& attrs);

// Boolean [B, H, L, T]: which elements of P dropout keeps.
struct KeepMaskAttrs {
  Shape shape;
  double dropout;
  std::int64_t stream;
  void fields(auto&& field) const {
    field("shape", shape), field("dropout", dropout), field("stream", stream, stream);
  }
};

namespace detail {

// The operands by name, null where absent. X: Tensor, Operand or Arg.
template <class X>
struct AttentionOperands {
  [[gnu::always_inline]] AttentionOperands(std::span<const X> in, const AttentionAttrs& a) {
    std::size_t at = 0;
    const auto take = [&](bool there) { return there ? &in[at++] : nullptr; };
    q = take(true), k = take(true), v = take(true);
    o = take(a.backward), lse = take(a.backward), z_o = take(a.backward), z_lse = take(a.has_z_lse);
    bias = take(a.has_bias), sink = take(a.has_sink);
    cu_q = take(a.packed), cu_k = take(a.packed), lengths = take(a.has_lengths);
    rng = take(a.dropout > 0);
  }
  const X *q, *k, *v, *o, *lse, *z_o, *z_lse, *bias, *sink, *cu_q, *cu_k, *lengths, *rng;
};

// flash_attn with what the rounding of ξ leaves, f64 or f32: results over parts of the keys can be merged
// whatever the scores are. rest has no gradient.
struct SplitAttentionResult {
  Tensor o, lse, rest;
};
SplitAttentionResult flash_attn_with_rest(TensorArg q, TensorArg k, TensorArg v,
                                          const AttentionOptions& options);

// Checks that paged_attn shares, and the scale of a call that gives none: 1/√d.
void check_heads(std::int64_t heads, std::int64_t key_heads);
void check_sink(const Operand& sink, const Operand& q);
double default_scale(const Tensor& q);

// decompose of the two ops, in standard_attn.cpp.
std::vector<Tensor> decompose_attention(std::span<const Tensor> in, const Attrs& attrs);
std::vector<Tensor> decompose_attention_backward(std::span<const Tensor> in, const Attrs& attrs);

}  // namespace detail

}  // namespace tg
