// AttentionCall describes a call of flash_attn, flash_attn_backward or paged_attn to the kernels of all
// backends. This header also computes the keys that a query attends to. The definitions are
//
//      A = cap·tanh(scale·q·k / cap) + bias      (without cap: scale·q·k + bias), −∞ outside the mask
//      P = exp(A − ξ),  ξ = log(Σ_j exp(A_j) + exp(sink)),  O = (P ⊛ keep)·V,
//
// where `keep` contains the dropout factors 0 or 1/(1 − p). A row without keys has O = 0 and zero gradients.
// Its ξ is −∞, or sink if there is a sink.
//
// All functions are always inlined. CPU kernels are compiled once per instruction set. If these builds shared
// a function, the linker would keep only one of its copies.
#pragma once

#include <span>

#include <tilegrad/core/base/rng.h>
#include <tilegrad/core/run/step.h>
#include <tilegrad/ops/paged_attn.h>

#if defined(__CUDACC__)
#define TG_HOST_DEVICE __host__ __device__
#else
#define TG_HOST_DEVICE
#endif

namespace tg {

struct AttentionCall {
  // [B, heads, rows, size] with a contiguous last axis; strides in elements.
  struct TensorView {
    void* data = nullptr;
    std::int64_t batch = 0, head = 0, row = 0;
    template <class S>
    [[gnu::always_inline]] TG_HOST_DEVICE S* at(std::int64_t b, std::int64_t h) const {
      return static_cast<S*>(data) + b * batch + h * head;
    }
  };
  // A bias that is broadcast to [B, H, L, T]. A broadcast axis has stride 0.
  struct Bias {
    void* data = nullptr;  // null: absent
    std::int64_t batch = 0, head = 0, row = 0, col = 0;
  };

  DType type = DType::f32;  // of all operands except ξ and z_ξ: f64 for f64, otherwise f32
  bool tf32 = false;        // f32 operands of GEMMs may be rounded to TF32
  std::int64_t B = 0;
  int H = 0, Hk = 0, L = 0, T = 0, d = 0, dv = 0;  // head h reads key head h / (H / Hk)
  TensorView q, k, v, o;  // [B, H, L, d], [B, Hk, T, d], [B, Hk, T, dv], [B, H, L, dv]
  TensorView z_o, z_q, z_k, z_v;
  void* lse = nullptr;          // ξ [B, H, L], contiguous
  void* lse_rest = nullptr;     // in a forward: rounding error of ξ [B, H, L], or null
  const void* z_lse = nullptr;  // [B, H, L], or null
  double scale = 1, softcap = 0 /* none */, dropout = 0;
  bool causal = false, top_left = false;  // the default alignment is bottom-right
  bool nondeterministic = false;          // z_Q may be summed in any order
  AttentionKernels kernels = AttentionKernels::best;
  int window_left = -1, window_right = -1;  // from the bottom-right position; −1: no limit
  Bias bias, z_bias;                        // z_bias has stride 0 along axes over which it is summed
  const void* sink = nullptr;               // [H], or null
  void* z_sink = nullptr;                   // [H], or null
  const std::int32_t *cu_q = nullptr, *cu_k = nullptr;  // [segments + 1] with B = 1, or null
  int segments = 0;               // segment s: queries cu_q[s] … cu_q[s + 1] − 1; keys: cu_k
  const void* lengths = nullptr;  // [B], number of valid keys per batch entry, or null
  bool lengths_are_i64 = false;   // otherwise i32
  bool fixed_positions = false;   // whether no step of the program writes lengths or table
  // For a paged cache: key t of batch entry b is row t % page of page table[b·pages + t / page]. Then k and v
  // are pools [pool, Hk, page, size], and `batch` is the stride between pages. The table is null if each
  // entry has one page of T rows.
  const std::int32_t* table = nullptr;  // [B, pages]; entries for existing keys are below `pool`
  int page = 0, pages = 0, pool = 0;
  // For a decoding step with L = 1: the new key and value of each sequence. The kernel first writes them to
  // the cache. They have the shapes [count, Hk, d] and [count, Hk, dv], with strides `batch` and `head`.
  // `rows` contains the destination rows in the cache, numbered over all batch entries or pages; −1 means
  // none.
  struct Added {
    const std::int32_t* rows = nullptr;
    int count = 0;
    TensorView k, v;
  } added;
  bool fixed_keys = false;  // whether no other step of the program writes k and v
  // The score and mask functions; null: none. `plan` is the code that a backend has made of them.
  const AttentionExpression* expression = nullptr;
  const void* plan = nullptr;
  const Arg *captured = nullptr,
            *z_captured = nullptr;    // captured tensors, and gradients of those with a bit
  std::int64_t needs_z_captured = 0;  // as in AttentionAttrs
  const std::int64_t* rng = nullptr;  // {seed, step}; rng_stride is their distance
  std::int64_t rng_stride = 1, stream = 0;
  std::uint32_t dropout_bound = 0;
};

// Whether the values are the first columns of the keys, as in latent attention. One row then contains both a
// key and a value.
[[gnu::always_inline]] TG_HOST_DEVICE inline bool values_are_keys(const AttentionCall& x) {
  const std::int64_t batches = x.table ? x.pool : x.B;
  const int rows = x.table ? x.page : x.T;
  return x.v.data == x.k.data && x.dv <= x.d && (batches <= 1 || x.v.batch == x.k.batch) &&
         (x.Hk <= 1 || x.v.head == x.k.head) && (rows <= 1 || x.v.row == x.k.row);
}

// If scores are far from 0, ξ = c + log π has no bits left for log π. Kernels therefore subtract c before
// they round, or use a single fused multiply-add (docs/notes/large-scores.md). For rows beyond these limits,
// the CPU's forward and every backward compute exp(A − c) as 2^((s − c)·f). Here c has the units of the
// scores s, and the factor f converts scores to exponents of 2. A backward recomputes c and π of such rows,
// because the scores may be rounded differently than in the forward.
constexpr double most_plain_exponent = 1024;  // limit of |c·f| in a forward on the CPU
// Limit of |ξ| in a backward. Within this limit, a rounding error of ξ changes P by less than the rounding of
// P.
constexpr TG_HOST_DEVICE double most_plain_lse(DType type) {
  return type == DType::f32 || type == DType::f64 ? 1024 : 8192;
}

// The keys [from, to). For every option, the keys of a query are one interval.
struct KeyRange {
  int from, to;
};

// Number of valid keys of a batch entry, 0 … T.
[[gnu::always_inline]] TG_HOST_DEVICE inline int kv_length(const AttentionCall& x, int b) {
  const std::int64_t n = x.lengths_are_i64 ? static_cast<const std::int64_t*>(x.lengths)[b]
                                           : std::int64_t{static_cast<const std::int32_t*>(x.lengths)[b]};
  return static_cast<int>(n < 0 ? 0 : n < x.T ? n : x.T);
}

// The queries and keys of the sequence that contains a query. Empty if the query is outside of all sequences.
struct QuerySequence {
  int first_query, queries, first_key, keys;
};
[[gnu::always_inline]] TG_HOST_DEVICE inline QuerySequence sequence_of_query(const AttentionCall& x, int b,
                                                                             int i) {
  if (i >= x.L) return {0, 0, 0, 0};
  if (!x.cu_q) return {0, x.L, 0, x.lengths ? kv_length(x, b) : x.T};
  int low = 0, high = x.segments;  // binary search for the last nonempty segment that starts at or before i
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (x.cu_q[middle] <= i ? low : high) = middle;
  }
  if (x.segments == 0 || i < x.cu_q[low] || i >= x.cu_q[low + 1]) return {0, 0, 0, 0};
  const int first_key = x.cu_k[low], keys = x.cu_k[low + 1] - first_key;
  if (first_key < 0 || keys < 0 || keys > x.T - first_key) return {0, 0, 0, 0};
  return {x.cu_q[low], x.cu_q[low + 1] - x.cu_q[low], first_key, keys};
}

// The keys that the rows of a sequence attend to: row r attends to keys r + from … r + to − 1 of the
// sequence, if they exist.
struct Band {
  int from, to, first_key, keys;  // −queries ≤ from, to ≤ keys

  [[gnu::always_inline]] TG_HOST_DEVICE Band(const AttentionCall& x, const QuerySequence& s)
      : from(-s.queries), to(s.keys), first_key(s.first_key), keys(s.keys) {
    const int offset = s.keys - s.queries;  // from a row to its aligned key, bottom-right
    if (x.causal) to = x.top_left ? 1 : offset + 1;
    if (x.window_left >= 0 && x.window_left < s.keys) from = offset - x.window_left;
    if (x.window_right >= 0 && x.window_right < to - offset - 1) to = offset + x.window_right + 1;
  }
  [[gnu::always_inline]] TG_HOST_DEVICE KeyRange of(int row) const { return of(row, row); }
  // some_of() returns the keys that at least one of the rows `first` to `last` attends to. every_of() returns
  // the keys that all of these rows attend to. It is empty if one row has no key.
  [[gnu::always_inline]] TG_HOST_DEVICE KeyRange some_of(int first, int last) const {
    return from < to ? of(first > 1 - to ? first : 1 - to, last < keys - 1 - from ? last : keys - 1 - from)
                     : KeyRange{0, 0};
  }
  [[gnu::always_inline]] TG_HOST_DEVICE KeyRange every_of(int first, int last) const {
    const KeyRange a = of(first), z = of(last);
    return a.from < a.to && z.from < z.to && z.from < a.to ? KeyRange{z.from, a.to} : KeyRange{0, 0};
  }

 private:
  // The keys from the first key of row `first` to the last key of row `last`. Both rows must have keys. Rows
  // are below `queries`, so no sum overflows int.
  [[gnu::always_inline]] TG_HOST_DEVICE KeyRange of(int first, int last) const {
    const int low = first > -from ? first + from : 0, high = last < keys - to ? last + to : keys;
    return low < high ? KeyRange{first_key + low, first_key + high} : KeyRange{0, 0};
  }
};

// The keys that query i of batch entry b attends to. The keys are within 0 … T even if the boundaries in
// cu_seqlens are invalid. Other code reports invalid boundaries.
[[gnu::always_inline]] TG_HOST_DEVICE inline KeyRange keys_visible_to(const AttentionCall& x, int b, int i) {
  const QuerySequence s = sequence_of_query(x, b, i);
  return Band(x, s).of(i - s.first_query);
}

// The attributes that determine the visible keys. Sequence boundaries and lengths are operands instead.
[[gnu::always_inline]] inline int window_of(std::int64_t keys) {
  return keys > INT32_MAX ? -1 : static_cast<int>(keys);
}
[[gnu::always_inline]] inline void set_mask(AttentionCall& x, const AttentionAttrs& a) {
  x.causal = a.causal, x.top_left = a.top_left;
  x.window_left = window_of(a.window_left), x.window_right = window_of(a.window_right);
}

namespace detail {

// If an operand has no memory, returns an address that must not be read. A null pointer would mean that the
// operand is absent.
[[gnu::always_inline]] inline std::byte* address_of(const Arg* x) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a static variable would be shared between instruction sets
  return !x ? nullptr : x->data ? x->data : reinterpret_cast<std::byte*>(std::uintptr_t{4096});
}
[[gnu::always_inline]] inline AttentionCall::TensorView operand_of(const Arg* x) {
  const Strides& s = x->layout.strides;
  return {address_of(x), s[0], s[1], s[2]};
}
// A view of a pool x [P, page, Hk, size].
[[gnu::always_inline]] inline AttentionCall::TensorView pool_of(const Arg& x) {
  const Strides& s = x.layout.strides;
  return {address_of(&x), s[0], s[2], s[1]};
}
[[gnu::always_inline]] inline std::int64_t broadcast_stride(const Layout& l, int axis) {
  return l.shape[axis] == 1 ? 0 : l.strides[axis];
}
[[gnu::always_inline]] inline AttentionCall::Bias bias_of(const Arg* x) {
  if (!x) return {};
  const Layout& l = x->layout;
  return {address_of(x), broadcast_stride(l, 0), broadcast_stride(l, 1), broadcast_stride(l, 2),
          broadcast_stride(l, 3)};
}

}  // namespace detail

// The call of a step of flash_attn or its backward. Operands were already checked when the op was recorded.
[[gnu::always_inline]] inline AttentionCall attention_call(std::span<const Arg> in, std::span<const Arg> out,
                                                           const AttentionAttrs& a) {
  using namespace detail;
  const AttentionOperands<Arg> x(in, a);
  const Shape &q = x.q->layout.shape, &v = x.v->layout.shape;
  AttentionCall n;
  n.type = x.q->dtype;
  n.B = q[0], n.H = static_cast<int>(q[1]), n.L = static_cast<int>(q[2]);
  n.d = static_cast<int>(q[3]);
  n.Hk = static_cast<int>(v[1]), n.T = static_cast<int>(v[2]), n.dv = static_cast<int>(v[3]);
  n.q = operand_of(x.q), n.k = operand_of(x.k), n.v = operand_of(x.v);
  n.scale = a.scale, n.softcap = a.softcap, n.nondeterministic = a.nondeterministic;
  n.kernels = a.kernels;
  set_mask(n, a);
  n.bias = bias_of(x.bias);
  n.sink = address_of(x.sink);
  if (a.packed) {
    n.cu_q = reinterpret_cast<const std::int32_t*>(address_of(x.cu_q));
    n.cu_k = reinterpret_cast<const std::int32_t*>(address_of(x.cu_k));
    n.segments = static_cast<int>(x.cu_q->layout.shape[0] - 1);
  }
  n.lengths = address_of(x.lengths);
  n.lengths_are_i64 = x.lengths && x.lengths->dtype == DType::i64;
  if (x.rng) {
    n.dropout = a.dropout, n.stream = a.stream, n.dropout_bound = dropout_bound(a.dropout);
    n.rng = reinterpret_cast<const std::int64_t*>(address_of(x.rng)), n.rng_stride = x.rng->layout.strides[0];
  }
  if (a.expression) n.expression = a.expression.get(), n.captured = x.captured;
  if (!a.backward) {
    n.o = operand_of(&out[0]), n.lse = address_of(&out[1]);
    if (a.has_lse_rest) n.lse_rest = address_of(&out[2]);
    return n;
  }
  n.o = operand_of(x.o), n.lse = address_of(x.lse);
  n.z_o = operand_of(x.z_o), n.z_lse = address_of(x.z_lse);
  n.z_q = operand_of(&out[0]), n.z_k = operand_of(&out[1]), n.z_v = operand_of(&out[2]);
  const Arg* more = &out[2] + 1;
  if (a.needs_z_bias) n.z_bias = bias_of(more++);
  if (a.needs_z_sink) n.z_sink = address_of(more++);
  n.z_captured = more, n.needs_z_captured = a.needs_z_captured;
  return n;
}

// The call of a paged_attn step. Operands were already checked when the op was recorded.
[[gnu::always_inline]] inline AttentionCall paged_attention_call(std::span<const Arg> in,
                                                                 std::span<const Arg> out,
                                                                 const PagedAttentionAttrs& a) {
  using namespace detail;
  const Shape &q = in[0].layout.shape, &v = in[2].layout.shape, &table = in[3].layout.shape;
  AttentionCall n;
  n.type = in[0].dtype;
  n.B = q[0], n.H = static_cast<int>(q[1]), n.L = static_cast<int>(q[2]), n.d = static_cast<int>(q[3]);
  n.pool = static_cast<int>(v[0]), n.page = static_cast<int>(v[1]);
  n.Hk = static_cast<int>(v[2]), n.dv = static_cast<int>(v[3]);
  n.pages = static_cast<int>(table[1]), n.T = n.pages * n.page;
  n.q = operand_of(&in[0]), n.k = pool_of(in[1]), n.v = pool_of(in[2]);
  n.table = reinterpret_cast<const std::int32_t*>(address_of(&in[3]));
  n.lengths = address_of(&in[4]);
  if (a.has_sink) n.sink = address_of(&in[5]);
  if (a.expression) n.expression = a.expression.get(), n.captured = &in[4] + 1 + a.has_sink;
  n.o = operand_of(&out[0]), n.lse = address_of(&out[1]);
  n.scale = a.scale, n.softcap = a.softcap;
  n.causal = true, n.window_left = window_of(a.window_left);
  return n;
}

}  // namespace tg
