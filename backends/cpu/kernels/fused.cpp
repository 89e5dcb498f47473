// Runs a fused chain of pointwise ops: block by block through the first-level cache, each block through all
// instructions, so that memory is passed over once.
#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/kernels/simd.h"
#include "backends/cpu/pointwise.h"

namespace tg::cpu::TG_ISA {

namespace {

using Plan = PointwisePlan;

// Walks elements [start, start + n) of the iteration space as runs along the innermost axis:
// f(first element of the run within the block, its offset in the operand, length).
template <class F>
TG_INLINE void for_runs(const Plan& p, const Plan::Operand& o, i64 start, i64 n, F f) {
  i64 index[max_rank], offset = 0;
  const int last = p.rank - 1;
  for (int a = last; a >= 0; --a) {
    index[a] = start % p.shape[a];
    start /= p.shape[a];
    offset += index[a] * o.strides[a];
  }
  for (i64 done = 0; done < n;) {
    const i64 left = p.shape[last] - index[last], run = left < n - done ? left : n - done;
    f(done, offset, run);
    done += run;
    index[last] += run;
    offset += run * o.strides[last];
    for (int a = last; a > 0 && index[a] == p.shape[a]; --a) {
      offset += o.strides[a - 1] - index[a] * o.strides[a];
      index[a] = 0;
      ++index[a - 1];
    }
  }
}

void run(Worker& w, const Call& call) {
  const Plan& p = *static_cast<const Plan*>(call.plan);
  const std::size_t slot_bytes =
      static_cast<std::size_t>(Plan::block) * static_cast<std::size_t>(p.compute_size);
  const auto slot = [&](int s) { return w.scratch + static_cast<std::size_t>(s) * slot_bytes; };

  const auto one_block = [&](i64 start, i64 n) {
    const std::byte* in[Plan::max_operands];
    for (int i = 0; i < p.inputs; ++i) {
      const Plan::Operand& o = p.input[i];
      if (o.direct) {
        in[i] = call.in[i].data + start * p.compute_size;
        continue;
      }
      std::byte* to = slot(p.input_slot[i]);
      for_runs(p, o, start, n, [&](i64 at, i64 offset, i64 length) {
        o.load(to + at * p.compute_size, call.in[i].data + offset * o.size, o.strides[p.rank - 1], length);
      });
      in[i] = to;
    }
    std::byte* out = call.out[0].data + (p.output.direct ? start * p.compute_size : 0);
    for (int c = 0; c < p.code_size; ++c) {
      const Plan::Instruction& instruction = p.code[c];
      const std::byte* source[3] = {};
      for (int k = 0; k < 3; ++k) {
        const Plan::Source s = instruction.source[k];
        if (s.kind == Plan::Source::input)
          source[k] = in[s.index];
        else if (s.kind == Plan::Source::constant)
          source[k] = p.constant[s.index];
        else if (s.kind == Plan::Source::slot)
          source[k] = slot(s.index);
      }
      instruction.run(instruction.slot < 0 ? out : slot(instruction.slot), source[0], source[1], source[2],
                      n);
    }
    if (p.output.direct) return;
    const std::byte* from = slot(p.result_slot);
    for_runs(p, p.output, start, n, [&](i64 at, i64 offset, i64 length) {
      p.output.store(call.out[0].data + offset * p.output.size, from + at * p.compute_size,
                     p.output.strides[p.rank - 1], length);
    });
  };

  // Parts of whole blocks, several per thread so that a slow one does not hold up the rest.
  const i64 blocks = (p.numel + Plan::block - 1) / Plan::block;
  const i64 parts = blocks < w.threads * 8 ? blocks : w.threads * 8;
  w.each(parts, [&](i64 part) {
    for (i64 b = blocks * part / parts; b < blocks * (part + 1) / parts; ++b) {
      const i64 start = b * Plan::block, left = p.numel - start;
      one_block(start, left < Plan::block ? left : Plan::block);
    }
  });
}

Scratch scratch(const Call& call, int) {
  const Plan& p = *static_cast<const Plan*>(call.plan);
  return {static_cast<std::size_t>(p.slots) * Plan::block * static_cast<std::size_t>(p.compute_size), 0};
}

}  // namespace

const Kernel fused_kernel{&run, &scratch};

}  // namespace tg::cpu::TG_ISA
