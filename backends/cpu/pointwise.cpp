#include "backends/cpu/pointwise.h"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "core/compile/fused_reductions.h"

namespace tg::cpu {

static_assert(PointwisePlan::max_inputs == FusedAttrs::max_inputs &&
              PointwisePlan::max_outputs == FusedAttrs::max_outputs &&
              PointwisePlan::max_code == FusedAttrs::max_code);

namespace {

const BlockEntry& find_block(const KernelSet& set, const std::string& op) {
  for (const BlockEntry& e : *set.blocks)
    if (e.op == op) return e;
  throw DeviceError("no CPU kernel for pointwise op '" + op + "'");
}

// Computes the iteration space. It has the axes of the first output, from outermost to innermost in memory.
// Two adjacent axes are merged if, in every operand, the outer stride equals the inner stride times the inner
// size.
void iteration_space(const Step& step, PointwisePlan& p) {
  const Layout& out = step.out[0].layout;
  int order[max_rank];
  for (int axis = 0; axis < out.rank(); ++axis) {  // insertion sort: equal strides keep their order
    int at = axis;
    for (; at > 0 && out.strides[order[at - 1]] < out.strides[axis]; --at) order[at] = order[at - 1];
    order[at] = axis;
  }
  const auto stride = [&](int operand, int axis) {  // outputs first
    return operand < p.outputs ? step.out[operand].layout.strides[axis]
                               : step.in[operand - p.outputs].layout.strides[axis];
  };
  const auto at = [&](int operand) {
    return operand < p.outputs ? p.output[operand].strides : p.input[operand - p.outputs].strides;
  };
  const int operands = p.outputs + p.inputs;
  for (int axis : std::span(order, static_cast<std::size_t>(out.rank()))) {
    const std::int64_t size = out.shape[axis];
    if (size == 1) continue;
    bool merges = p.rank > 0;
    for (int o = 0; o < operands && merges; ++o) merges = at(o)[p.rank - 1] == size * stride(o, axis);
    if (!merges) p.shape[p.rank++] = 1;
    p.shape[p.rank - 1] *= size;
    for (int o = 0; o < operands; ++o) at(o)[p.rank - 1] = stride(o, axis);
  }
  if (p.rank == 0) {
    p.shape[p.rank++] = 1;
    for (int o = 0; o < operands; ++o) at(o)[0] = 1;
  }
}

bool is_linear(const PointwisePlan& p, const PointwisePlan::Access& o) {
  std::int64_t expected = 1;
  for (int a = p.rank - 1; a >= 0; --a) {
    if (o.strides[a] != expected) return false;
    expected *= p.shape[a];
  }
  return true;
}

// Results of at least this number of bytes bypass the caches. Such results are far larger than the L2 cache,
// so the next reader must read memory in any case, and bypassing saves half of the write traffic. It saves
// more for tiles: their cache lines are far apart, and an ordinary store would wait for each line.
constexpr std::int64_t stream_from = piece_size(16 << 20, 1 << 12),
                       stream_tiles_from = piece_size(4 << 20, 1 << 12);

// Returns the axis along which the first transposed input is contiguous, or -1 if all inputs are contiguous
// along the last axis.
int transposed_axis(const PointwisePlan& p) {
  const int last = p.rank - 1;
  for (int i = 0; i < p.inputs; ++i) {
    const std::int64_t* s = p.input[i].strides;
    if (s[last] == 0 || s[last] == 1 || p.shape[last] < 8) continue;
    for (int a = 0; a < last; ++a)
      if (s[a] == 1 && p.shape[a] >= 8) return a;
  }
  return -1;
}

using ConstantBlock = std::shared_ptr<const std::vector<std::byte>>;

template <class T>
ConstantBlock filled(double x) {
  auto block = std::make_shared<std::vector<std::byte>>(PointwisePlan::block * sizeof(T));
  std::fill_n(reinterpret_cast<T*>(block->data()), PointwisePlan::block, static_cast<T>(x));
  return block;
}

// Returns a block filled with one value. Programs have few distinct values, so plans share the blocks.
ConstantBlock constant_block(DType compute, double x) {
  using Blocks = std::map<std::pair<DType, std::uint64_t>, std::weak_ptr<const std::vector<std::byte>>>;
  static std::mutex mutex;
  static auto& blocks = *new Blocks;
  const std::lock_guard lock(mutex);
  auto& known = blocks[{compute, std::bit_cast<std::uint64_t>(x)}];
  ConstantBlock block = known.lock();
  if (!block) {
    block = compute == f64 ? filled<double>(x) : compute == f32 ? filled<float>(x) : filled<std::int64_t>(x);
    known = block;
  }
  return block;
}

// Assigns a block or output to each instruction's result. A block is free again after its last reader.
// Outputs are stored after the last instruction.
void place_results(const FusedAttrs& fused, const KernelSet& set, PointwisePlan& p) {
  int last_use[PointwisePlan::max_code], slot_of[PointwisePlan::max_code], free[PointwisePlan::max_code],
      frees = 0, last_input = -1;  // the last instruction that reads an input in place
  std::fill_n(last_use, p.code_size, -1);
  for (int c = 0; c < p.code_size; ++c)
    for (const FusedAttrs::Source& o : fused.code[c].operands()) {
      if (o.kind == FusedAttrs::Source::result) last_use[o.index] = c;
      if (o.kind == FusedAttrs::Source::input && p.input[o.index].direct) last_input = c;
    }
  int output_of[PointwisePlan::max_code];
  std::fill_n(output_of, p.code_size, -1);
  for (int o = 0; o < p.outputs; ++o) {
    const int c = fused.result(static_cast<std::size_t>(o));
    output_of[c] = o;
    // An output may share an input's memory, so it is written only after all inputs have been read.
    p.output[o].direct = p.output[o].direct && last_use[c] < 0 && c >= last_input;
    if (!p.output[o].direct) last_use[c] = p.code_size;
  }
  for (int c = 0; c < p.code_size; ++c) {
    PointwisePlan::Instruction& i = p.code[c];
    i.run = block_function(set, *fused.code[c].op, fused.code[c].dtype, fused.compute);
    for (auto& s : i.source) s = {PointwisePlan::Source::none, 0};
    for (std::size_t k = 0; k < fused.code[c].count; ++k) {
      const FusedAttrs::Source& o = fused.code[c].slots[k];
      i.source[k] = o.kind == FusedAttrs::Source::input
                        ? PointwisePlan::Source{PointwisePlan::Source::input, o.index}
                    : o.kind == FusedAttrs::Source::constant
                        ? PointwisePlan::Source{PointwisePlan::Source::constant, o.index}
                        : PointwisePlan::Source{PointwisePlan::Source::slot, slot_of[o.index]};
    }
    const int o = output_of[c];
    if (o >= 0 && p.output[o].direct) {
      i.slot = -1 - o;
    } else {
      i.slot = slot_of[c] = frees > 0 ? free[--frees] : p.slots++;
      if (o >= 0) p.output_slot[o] = i.slot;
    }
    for (int r = 0; r < c; ++r)
      if (last_use[r] == c) free[frees++] = slot_of[r];
  }
}

struct PlanWithConstants : PointwisePlan {
  std::vector<ConstantBlock> blocks;
};

// `reduced`: the output that a reduction reads, or -1 if there is none.
std::shared_ptr<const PointwisePlan> plan_of(const FusedAttrs& fused, const Step& step, int reduced,
                                             int stored, const KernelSet& set) {
  const auto plan = std::make_shared<PlanWithConstants>();
  PlanWithConstants& p = *plan;
  p.inputs = static_cast<int>(step.in.size());
  p.outputs = static_cast<int>(step.out.size());
  p.code_size = static_cast<int>(fused.code.size());
  if (p.inputs > p.max_inputs || p.outputs > p.max_outputs || p.code_size > p.max_code ||
      fused.constants.size() > static_cast<std::size_t>(p.max_constants))
    throw DeviceError("a fused step is too long: " + std::to_string(p.inputs) + " inputs, " +
                      std::to_string(p.outputs) + " outputs, " + std::to_string(p.code_size) +
                      " instructions");
  p.compute_size = static_cast<int>(size_of(fused.compute));
  p.numel = step.out[0].layout.numel();
  iteration_space(step, p);
  p.reduced = reduced, p.stored = stored;
  p.tile_axis = reduced < 0 ? transposed_axis(p) : -1;
  if (p.tile_axis >= 0) p.tile_slot = p.slots++;

  const auto operand = [&](const Arg& a, PointwisePlan::Access& o) {
    o.size = static_cast<int>(size_of(a.dtype));
    o.direct = a.dtype == fused.compute && is_linear(p, o) && p.tile_axis < 0;
    o.converts = a.dtype != fused.compute;
    o.across = p.tile_axis >= 0 && o.strides[p.tile_axis] == 1 && o.strides[p.rank - 1] != 1;
    o.load = set.load(a.dtype, fused.compute);
    o.store = set.store(fused.compute, a.dtype);
  };
  for (int i = 0; i < p.inputs; ++i) {
    operand(step.in[i], p.input[i]);
    if (!p.input[i].load) throw DeviceError("no conversion from " + std::string(name_of(step.in[i].dtype)));
    p.input_slot[i] = p.input[i].direct ? -1 : p.slots++;
  }
  for (int o = 0; o < p.outputs; ++o) {
    PointwisePlan::Access& out = p.output[o];
    operand(step.out[o], out);
    out.streams = !out.converts && out.strides[p.rank - 1] == 1 &&
                  p.numel * p.compute_size >= (p.tile_axis < 0 ? stream_from : stream_tiles_from);
    if (out.streams || o == reduced) out.direct = false;
    if (!out.store) throw DeviceError("no conversion to " + std::string(name_of(step.out[o].dtype)));
  }
  place_results(fused, set, p);

  for (std::size_t k = 0; k < fused.constants.size(); ++k) {
    p.blocks.push_back(constant_block(fused.compute, fused.constants[k]));
    p.constant[k] = p.blocks.back()->data();
  }
  return plan;
}

}  // namespace

BlockFn block_function(const KernelSet& set, const Op& op, DType dtype, DType compute) {
  const bool rounds = op.converts && dtype != compute &&
                      (is_float(dtype) ? compute != i64 : dtype == i64 || dtype == boolean);
  const BlockEntry& e = find_block(set, rounds ? "cast_" + std::string(name_of(dtype)) : op.name);
  const BlockFn f = compute == f64 ? e.f64 : compute == f32 ? e.f32 : e.i64;
  if (!f) throw DeviceError("op '" + op.name + "' is not defined for " + std::string(name_of(dtype)));
  return f;
}

std::shared_ptr<const PointwisePlan> plan_pointwise(const Step& step, const KernelSet& set) {
  return plan_of(step.attrs.as<FusedAttrs>(), step, -1, static_cast<int>(step.out.size()), set);
}

std::shared_ptr<const PointwisePlan> plan_fused_reduction(const Step& step, const KernelSet& set) {
  const auto& r = step.attrs.as<FusedReduction>();
  FusedAttrs chain = r.chain;
  Step alone{&fused_op, {}, step.in, {step.out.begin(), step.out.end() - 1}, {}, {}};
  const int stored = static_cast<int>(alone.out.size());
  int reduced = r.stored();
  if (reduced >= 0) {
    chain.results.pop_back();
  } else {
    reduced = stored;
    alone.out.push_back({r.dtype, r.made});
  }
  return plan_of(chain, alone, reduced, stored, set);
}

}  // namespace tg::cpu
