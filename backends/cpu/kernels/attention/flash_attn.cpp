// flash_attn, flash_attn_backward and paged_attn: they check the data of every run and call the attention
// kernels. This file also contains the op that computes the dropout mask.
#include "backends/cpu/kernels/attention/attention.h"
#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/kernels/simd.h"

namespace tg::cpu::TG_ISA {

namespace {

AttentionCall attention_of(const Call& c) {
  AttentionCall x = attention_call(c.in, c.out, c.attrs->as<AttentionAttrs>());
  x.plan = c.plan;
  return x;
}

// Whether the boundaries start at 0, increase and stay within `rows`. Reports the first boundary that
// violates this.
bool are_boundaries(Worker& w, const std::int32_t* cu, std::int64_t segments, std::int64_t rows) {
  std::int64_t before = 0;
  for (std::int64_t s = 0; s <= segments; ++s) {
    if (!w.check_index(cu[s], rows + 1, s) || !w.check_index(cu[s] - before, rows + 1, s)) return false;
    before = cu[s];
  }
  return true;
}

// Whether the boundaries and lengths, which are run-time data, are within the tensors. If they are not, every
// thread returns without computing anything.
bool are_within(Worker& w, const AttentionCall& n) {
  if (n.cu_q) return are_boundaries(w, n.cu_q, n.segments, n.L) && are_boundaries(w, n.cu_k, n.segments, n.T);
  for (std::int64_t b = 0; n.lengths && b < n.B; ++b) {
    const std::int64_t length = n.lengths_are_i64 ? static_cast<const std::int64_t*>(n.lengths)[b]
                                                  : static_cast<const std::int32_t*>(n.lengths)[b];
    if (!w.check_index(length, n.T + std::int64_t{1}, b)) return false;
  }
  return true;
}

// paged_attn uses the decoding kernel for any number of rows, so results do not depend on the number of rows.
AttentionCall paged_of(const Call& c) {
  AttentionCall x = paged_attention_call(c.in, c.out, c.attrs->as<PagedAttentionAttrs>());
  x.plan = c.plan;
  return x;
}
// Whether each table entry for an existing key is a page of the pool. True without a table.
bool are_in_pool(Worker& w, const AttentionCall& n) {
  for (std::int64_t b = 0; n.table && b < n.B; ++b) {
    const std::int64_t pages = (kv_length(n, static_cast<int>(b)) + std::int64_t{n.page} - 1) / n.page;
    for (std::int64_t place = b * n.pages; place < b * n.pages + pages; ++place)
      if (!w.check_index(n.table[place], n.pool, place)) return false;
  }
  return true;
}

// Rounds results below the normal numbers to 0 during its lifetime. Probabilities of distant keys, as with
// ALiBi, are often that small, and such operands make multiply-adds many times slower.
class FlushToZero {
 public:
#if defined(__SSE2__)
  FlushToZero() {
    _mm_setcsr(before_ | 0x8000);
  }
  ~FlushToZero() {
    _mm_setcsr(before_);
  }

 private:
  const unsigned before_ = _mm_getcsr();
#endif
};

template <AttentionCall (*call_of)(const Call&), const AttentionKernel& attention>
void run(Worker& w, const Call& c) {
  const AttentionCall n = call_of(c);
  const FlushToZero flush;
  if (are_within(w, n) && are_in_pool(w, n)) attention.run(n, w);
}
template <AttentionCall (*call_of)(const Call&), const AttentionKernel& attention>
Scratch scratch(const Call& c, int) {
  return attention.scratch(call_of(c));
}
template <AttentionCall (*call_of)(const Call&), const AttentionKernel& attention>
void choice(const Call& c, int, char* text, std::size_t size) {
  attention.choice(call_of(c), text, size);
}

const char* reason(const Call& c) {
  switch (c.attrs->as<AttentionAttrs>().kernels) {
    case AttentionKernels::tensor_cores:
      return "kernels = tensor_cores: the CPU has multiply-adds only";
    case AttentionKernels::wgmma:
      return "kernels = wgmma: the CPU has multiply-adds only";
    default:
      return nullptr;
  }
}

// keep[b, h, i, j] = word j % 4 of block (b·H + h, i, j / 4) is at or above the bound.
void run_mask(Worker& w, const Call& c) {
  const auto& a = c.attrs->as<KeepMaskAttrs>();
  const std::int64_t L = a.shape[2], T = a.shape[3];
  const auto* rng = reinterpret_cast<const std::int64_t*>(c.in[0].data);
  const std::uint64_t key =
      node_key(static_cast<std::uint64_t>(rng[0]), static_cast<std::uint64_t>(rng[c.in[0].layout.strides[0]]),
               static_cast<std::uint32_t>(a.stream));
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

extern const Kernel flash_attn_kernel{&run<attention_of, attention_forward>,
                                      &scratch<attention_of, attention_forward>,
                                      &choice<attention_of, attention_forward>, &reason};
extern const Kernel flash_attn_backward_kernel{&run<attention_of, attention_backward>,
                                               &scratch<attention_of, attention_backward>,
                                               &choice<attention_of, attention_backward>, &reason};
extern const Kernel paged_attn_kernel{&run<paged_of, attention_decode>, &scratch<paged_of, attention_decode>,
                                      &choice<paged_of, attention_decode>};
extern const Kernel attention_keep_mask_kernel{&run_mask};

}  // namespace tg::cpu::TG_ISA
