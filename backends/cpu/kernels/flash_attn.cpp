// flash_attn and flash_attn_backward: from operands and attributes to the attention kernels' arguments; and
// the dropout mask on its own.
#include <tilegrad/ops/flash_attn.h>

#include <tilegrad/core/base/rng.h>
#include "backends/cpu/kernels/attention.h"
#include "backends/cpu/kernels/kernels.h"

namespace tg::cpu::TG_ISA {

namespace {

// Scratch is asked for before there is memory: a stand-in tells operands that are there from absent ones.
alignas(64) std::byte stand_in;

std::byte* address(const Arg* x) {
  return !x ? nullptr : x->data ? x->data : &stand_in;
}

Attention::Operand operand(const Arg* x) {
  const Strides& s = x->layout.strides;
  return {address(x), s[0], s[1], s[2]};
}

Attention::Bias broadcast(const Arg* x) {
  if (!x) return {};
  const Layout& l = x->layout;
  const auto stride = [&](int axis) { return l.shape[axis] == 1 ? 0 : l.strides[axis]; };
  return {address(x), stride(0), stride(1), stride(2), stride(3)};
}

std::uint64_t dropout_key(const Arg& rng, std::int64_t stream) {
  if (!rng.data) return 0;
  const auto* r = reinterpret_cast<const std::int64_t*>(rng.data);
  return node_key(static_cast<std::uint64_t>(r[0]), static_cast<std::uint64_t>(r[rng.layout.strides[0]]),
                  static_cast<std::uint32_t>(stream));
}

Attention attention_of(const Call& c) {
  const auto& a = c.attrs->as<AttentionAttrs>();
  const detail::AttentionOperands<Arg> x(c.in, a);
  Attention n;
  const Shape &q = x.q->layout.shape, &v = x.v->layout.shape;
  n.type = x.q->dtype;
  n.B = q[0], n.H = q[1], n.L = q[2], n.d = q[3];
  n.Hk = v[1], n.T = v[2], n.dv = v[3];
  n.q = operand(x.q), n.k = operand(x.k), n.v = operand(x.v);
  n.scale = a.scale;
  n.causal = a.causal, n.top_left = a.top_left;
  n.window_left = a.window_left, n.window_right = a.window_right;
  n.bias = broadcast(x.bias);
  n.softcap = a.softcap;
  n.sink = address(x.sink);
  if (a.packed) {
    n.cu_q = reinterpret_cast<const std::int32_t*>(address(x.cu_q));
    n.cu_k = reinterpret_cast<const std::int32_t*>(address(x.cu_k));
    n.segments = x.cu_q->layout.shape[0] - 1;
  }
  if (x.lengths) {
    n.kv_lengths = address(x.lengths);
    n.kv_lengths_type = x.lengths->dtype;
  }
  if (x.rng) {
    n.dropout = a.dropout;
    n.dropout_key = dropout_key(*x.rng, a.stream);
  }
  if (!a.backward) {
    n.o = operand(&c.out[0]);
    n.lse = address(&c.out[1]);
    return n;
  }
  n.o = operand(x.o), n.lse = address(x.lse);
  n.z_o = operand(x.z_o), n.z_lse = address(x.z_lse);
  n.z_q = operand(&c.out[0]), n.z_k = operand(&c.out[1]), n.z_v = operand(&c.out[2]);
  if (a.wants_z_bias) n.z_bias = broadcast(&c.out[3]);
  if (a.wants_z_sink) n.z_sink = address(&c.out[c.out.size() - 1]);
  return n;
}

// Whether the boundaries rise from 0 on and stay within `rows`; notes the first that does not.
bool are_boundaries(Worker& w, const std::int32_t* cu, std::int64_t segments, std::int64_t rows) {
  std::int64_t before = 0;
  for (std::int64_t s = 0; s <= segments; ++s) {
    if (!w.check_index(cu[s], rows + 1, s) || !w.check_index(cu[s] - before, rows + 1, s)) return false;
    before = cu[s];
  }
  return true;
}

// Sequences and lengths come from outside at every run: where they leave the tensors the run is refused, by
// every thread alike.
bool are_within(Worker& w, const Attention& n) {
  if (n.cu_q) return are_boundaries(w, n.cu_q, n.segments, n.L) && are_boundaries(w, n.cu_k, n.segments, n.T);
  for (std::int64_t b = 0; n.kv_lengths && b < n.B; ++b) {
    const std::int64_t length = n.kv_lengths_type == DType::i64
                                    ? static_cast<const std::int64_t*>(n.kv_lengths)[b]
                                    : static_cast<const std::int32_t*>(n.kv_lengths)[b];
    if (!w.check_index(length, n.T + 1, b)) return false;
  }
  return true;
}

void run_forward(Worker& w, const Call& c) {
  const Attention n = attention_of(c);
  if (are_within(w, n)) attention_forward(n, w);
}
void run_backward(Worker& w, const Call& c) {
  const Attention n = attention_of(c);
  if (are_within(w, n)) attention_backward(n, w);
}

Scratch scratch_forward(const Call& c, int threads) {
  const ScratchSize s = attention_forward_scratch(attention_of(c), threads);
  return {s.thread, s.shared};
}
Scratch scratch_backward(const Call& c, int threads) {
  const ScratchSize s = attention_backward_scratch(attention_of(c), threads);
  return {s.thread, s.shared};
}

void choice_forward(const Call& c, int, char* text, std::size_t size) {
  attention_forward_choice(attention_of(c), text, size);
}
void choice_backward(const Call& c, int, char* text, std::size_t size) {
  attention_backward_choice(attention_of(c), text, size);
}

// keep[b, h, i, j] = word j % 4 of block (b·H + h, i, j / 4) at or above the bound.
void run_mask(Worker& w, const Call& c) {
  const auto& a = c.attrs->as<KeepMaskAttrs>();
  const std::int64_t L = a.shape[2], T = a.shape[3];
  const std::uint64_t key = dropout_key(c.in[0], a.stream);
  const std::uint32_t bound = dropout_bound(a.dropout);
  auto* keep = reinterpret_cast<bool*>(c.out[0].data);
  w.each(a.shape[0] * a.shape[1] * L, [&](std::int64_t row) {
    const auto batch_head = static_cast<std::uint32_t>(row / L), query = static_cast<std::uint32_t>(row % L);
    for (std::int64_t j = 0; j < T; j += 4) {
      const PhiloxBlock block =
          philox(attention_counter(batch_head, query, static_cast<std::uint32_t>(j)), key);
      for (std::int64_t e = 0; e < 4 && j + e < T; ++e)
        keep[row * T + j + e] = block[static_cast<std::size_t>(e)] >= bound;
    }
  });
}

}  // namespace

extern const Kernel flash_attn_kernel{&run_forward, &scratch_forward, &choice_forward};
extern const Kernel flash_attn_backward_kernel{&run_backward, &scratch_backward, &choice_backward};
extern const Kernel attention_keep_mask_kernel{&run_mask};

}  // namespace tg::cpu::TG_ISA
