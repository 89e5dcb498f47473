// Matches RoPE steps next to an attention step and decides whether the attention kernel computes them.
#include "backends/cuda/attention/ropes.h"

#include <algorithm>

#include <tilegrad/ops/flash_attn.h>
#include "backends/cuda/fusion/fusion.h"
#include "backends/cuda/fusion/rope.h"
#include "ops/attention_call.h"

namespace tg::cuda {

namespace {

// Whether `a` and `b` are the same elements at the same addresses.
bool is_same(const Arg& a, const Arg& b) {
  return a.data == b.data && a.layout.shape == b.layout.shape && a.layout.strides == b.layout.strides;
}

}  // namespace

bool is_rope_for(const Step& rope, const Step& attention) {
  return rope_of(*rope.op, rope.attrs) && attention_of(*attention.op, attention.attrs) &&
         (is_same(rope.out[0], attention.in[0]) || is_same(rope.out[0], attention.in[1]));
}

bool is_rope_of(const Step& attention, const Step& rope) {
  return rope_of(*rope.op, rope.attrs) && attention_backward_of(*attention.op, attention.attrs) &&
         (is_same(rope.in[0], attention.out[0]) || is_same(rope.in[0], attention.out[1]));
}

namespace attention {

std::optional<FusedRopes> fused_ropes(std::span<const Step> steps, const Call& call) {
  const bool backward = call.attrs->as<AttentionAttrs>().backward;
  // `own` is what attention itself reads or writes. `other` is the tensor on the far side of the RoPE step.
  const std::span<const Arg> own = backward ? call.out : call.in;
  FusedRopes all;
  Ropes& r = all.ropes;
  for (const Step& s : steps) {
    const auto& a = s.attrs.as<RopeAttrs>();
    const Arg &mine = backward ? s.in[0] : s.out[0], &other = backward ? s.out[0] : s.in[0];
    const bool is_q = is_same(mine, own[0]), is_first = !r.table;
    const std::shared_ptr<const void> table =
        rope_table({s.in, s.out, &s.attrs, call.gpu, false, false, false});
    if (!table || (is_q ? r.of_q : r.of_k)) return std::nullopt;
    if (!is_first && (table.get() != r.table || a.interleaved != r.interleaved || a.inverse != r.inverse))
      return std::nullopt;
    if (other.layout.strides[3] != 1) return std::nullopt;
    const AttentionCall::TensorView to = detail::operand_of(&other);
    if (!in_pieces(to, 16 / static_cast<int>(size_of(other.dtype)))) return std::nullopt;
    (is_q ? r.of_q : r.of_k) = true;
    (is_q ? r.q : r.k) = to;
    r.table = static_cast<const float*>(table.get());
    r.rows = static_cast<int>(mine.layout.shape[2]), r.pairs = static_cast<int>(a.frequencies.size());
    r.interleaved = a.interleaved, r.inverse = a.inverse;
    for (r.lanes = 0; 2 << r.lanes < r.pairs;) ++r.lanes;
    all.table = table;

    // The forward overwrites the rotated tensor, so no other operand of the forward may be this tensor.
    const auto is_mine = [&](const Arg& operand) { return overlap(range_of(mine), range_of(operand)); };
    if (std::ranges::count_if(own, is_mine) != 1) return std::nullopt;
    // Blocks run concurrently. Each reads and writes the rows of its own head.
    if (!is_same(mine, other) && overlap(range_of(mine), range_of(other))) return std::nullopt;
    if (meets(other, backward ? call.in : call.out)) return std::nullopt;
    for (const Step& another : steps)
      if (&another != &s && (meets(other, another.in) || meets(other, another.out))) return std::nullopt;
  }
  return all;
}

bool computes_ropes(const Choice& c, const Ropes& r) {
  if (c.family() == KernelFamily::short_heads) return r.pairs % 2 == 0;
  const AttentionCall& x = c.x;
  const bool is_plain = x.softcap == 0 && !x.cu_q && !x.lengths && x.L == x.T;  // every query sees a key
  return c.kernel->launch_with_ropes && size_of(x.type) == 2 && x.d == 64 && c.work.width == 64 && is_plain &&
         r.of_q && r.of_k && !r.interleaved && r.inverse && r.pairs == 32;
}

}  // namespace attention

}  // namespace tg::cuda
