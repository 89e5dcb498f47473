// Chooses attention kernels, describes the choice, and lays out workspace.
#include <algorithm>

#include "backends/cuda/attention/decoding/decoding.h"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/shapes.h"
#include "ops/index.h"

namespace tg::cuda::attention {

namespace {

// Throws if AttentionOptions::kernels requires kernels of a different family.
void require_asked(const Candidate& c, KernelFamily family, const char* reason) {
  const AttentionCall& x = c.x;
  const bool wgmma = x.kernels == AttentionKernels::wgmma;
  if (wgmma ? family == KernelFamily::hopper
            : x.kernels != AttentionKernels::tensor_cores || family != KernelFamily::plain)
    return;
  const char* why = c.on_tensor_cores;
  if (!why) why = reason ? reason : "more shared memory than a block of this GPU has";
  if (wgmma && !c.gpu.hopper)
    why = c.gpu.capability == 90 ? "the library was compiled without sm_90a" : "the GPU is not a Hopper";
  throw DeviceError("kernels = " + std::string(name_of(x.kernels)) + ": " + why);
}

void require_support(const AttentionCall& x) {
  if (x.B > INT32_MAX) throw DeviceError("attention supports batches below 2^31");
  if (x.expression) throw DeviceError("score and mask functions run on the CPU only");
}

// Whether `a` (k or v of a cache) and an index_assign's tensor are the same memory, with all rows of all
// heads in order.
bool is_cache(const AttentionCall::TensorView& a, int rows, int heads, const Arg& tensor) {
  const Layout& l = tensor.layout;
  return a.data == tensor.data && l.rank() == 3 && l.is_contiguous() && l.shape[1] == heads &&
         a.row == l.strides[0] && (heads == 1 || a.head == l.strides[1]) && a.batch == rows * a.row &&
         l.shape[0] <= INT32_MAX;
}

}  // namespace

Choice::Choice(const AttentionCall& call, bool backward, const Gpu& gpu, std::byte* base,
               bool batch_invariant)
    : x(call) {
  const Candidate candidate(x, backward, gpu, batch_invariant);
  const auto accepts = [&](const AttentionKernel& k) {
    return k.backward == backward && k.accepts(candidate);
  };
  kernel = &*std::ranges::find_if(attention_kernels(), accepts);
  const KernelFamily family = kernel->family;
  if (!decodes() && may_be_on_hopper(candidate)) reason = candidate.on_hopper;
  require_asked(candidate, family, reason);
  if (kernel->workspace) work = kernel->workspace(x, gpu, base);
  if (x.type == DType::f32 && family != KernelFamily::plain && family != KernelFamily::decoding)
    split.emplace(x, backward, family == KernelFamily::hopper, base + work.bytes);
}

std::optional<AttentionCall::Added> added_before(const Choice& c, const Call& call, const Step& step) {
  const AttentionCall& x = c.x;
  constexpr int slice = 32;  // keys, at most
  const int rows = x.table ? x.page : x.T;
  if (c.family() != KernelFamily::decoding || decoding::is_of_latents(x) || x.L != 1 ||
      !decoding::uses_split_kv(x, c.work.parts, call.gpu) || !x.fixed_positions || step.out.size() != 2 ||
      step.attrs.as<AxisAttrs>().axis != 0)
    return std::nullopt;
  if (x.table && rows % slice != 0 && slice % rows != 0) return std::nullopt;
  const Arg& indices = step.in[4];
  int axes = 0;  // number of axes longer than 1
  for (int axis = 0; axis < indices.layout.rank(); ++axis) axes += indices.layout.shape[axis] > 1;
  if (indices.dtype != DType::i32 || !indices.layout.is_contiguous() || indices.layout.numel() != x.B ||
      axes > 1 || !is_constant(indices, call))
    return std::nullopt;
  AttentionCall::Added added{
      reinterpret_cast<const std::int32_t*>(indices.data), static_cast<int>(x.B), {}, {}};
  for (const bool values : {false, true}) {
    const Arg &before = step.in[values ? 2 : 0], &more = step.in[values ? 3 : 1], &after = step.out[values];
    if (before.data != after.data || !is_cache(values ? x.v : x.k, rows, x.Hk, after) ||
        call.written->others_write(after, &step))
      return std::nullopt;
    // A block may write results while other blocks still read the added rows.
    for (const Arg& out : call.out)
      if (overlap(range_of(out), range_of(more))) return std::nullopt;
    // The added rows have the axes of the indices, then heads, then elements. At most one axis of the indices
    // is longer than 1.
    const Layout& l = more.layout;
    const int last = l.rank() - 1;
    AttentionCall::TensorView& to = values ? added.v : added.k;
    to = {more.data, 0, l.strides[last - 1], 0};
    for (int axis = 0; axis + 1 < last; ++axis)
      if (l.shape[axis] > 1) to.batch = l.strides[axis];
    if (!in_pieces(to, 16 / static_cast<int>(size_of(x.type))) || l.strides[last] != 1) return std::nullopt;
  }
  return added;
}

Choice choice_of(const Call& call, std::byte* base) {
  const AttentionAttrs& attrs = call.attrs->as<AttentionAttrs>();
  AttentionCall x = attention_call(call.in, call.out, attrs);
  require_support(x);
  x.tf32 = call.tf32;
  const Arg* const lengths = detail::AttentionOperands<Arg>(call.in, attrs).lengths;
  x.fixed_positions = !lengths || is_constant(*lengths, call);
  x.nondeterministic = x.nondeterministic && !call.in_order;
  x.fixed_keys = is_constant(call.in[1], call) && is_constant(call.in[2], call);
  return {x, attrs.backward, call.gpu, base, call.batch_invariant};
}

Choice paged_choice(const Call& call, std::byte* base) {
  AttentionCall x = paged_attention_call(call.in, call.out, call.attrs->as<PagedAttentionAttrs>());
  require_support(x);
  x.tf32 = call.tf32;
  x.fixed_positions = is_constant(call.in[3], call) && is_constant(call.in[4], call);
  x.fixed_keys = is_constant(call.in[1], call) && is_constant(call.in[2], call);
  return {x, false, call.gpu, base};
}

AttentionCall Choice::operands() const {
  AttentionCall to = x;
  AttentionCall::TensorView* const operands[] = {&to.q, &to.k, &to.v, &to.z_o};
  for (int n = 0; split && n < split->count; ++n) {
    const SplitOperands::SplitOperand& a = split->operand[n];
    const std::int64_t row = split->terms * split->width, head = row * a.rows;
    *operands[n] = {a.to, head * a.heads, head, row};
  }
  return to;
}

std::string Choice::describe() const {
  std::string text = kernel->description;
  if (split) text += split->terms == 1 ? ", f32 rounded to f16" : ", f32 split into two f16";
  if (family() == KernelFamily::hopper && work.parts > 1)
    text += ", keys split into " + std::to_string(work.parts) + " parts";
  if (decodes() && x.table)
    text += ", paged cache";
  else if (family() == KernelFamily::latents)
    text += ", ranges of " + std::to_string(decoding::ranges_by_wgmma(x).each) + " keys";
  else if (family() == KernelFamily::decoding && work.parts > 1)
    text += ", ranges of " + std::to_string(decoding::InOnePiece::ranges(x).each) + " keys";
  return text + (reason ? std::string(", no wgmma: ") + reason : "");
}

bool in_pieces(const AttentionCall::TensorView& a, int piece) {
  return reinterpret_cast<std::uintptr_t>(a.data) % 16 == 0 && a.batch % piece == 0 && a.head % piece == 0 &&
         a.row % piece == 0;
}

void Workspace::take_rows(Arena& memory, const AttentionCall& x) {
  const std::size_t heads = std::size_t(x.B) * x.H, size = size_of(compute_type(x.type));
  u = memory.take<std::byte>(heads * x.L * size);
  bases = memory.take<std::byte>(heads * x.L * 2 * size);
  far = memory.take<unsigned char>(heads * far_groups(x));
}

Workspace::Workspace(const AttentionCall& x, int sums_of_z_q, std::byte* base) : workers(sums_of_z_q) {
  Arena memory{base};
  const std::size_t rows = std::size_t(x.B) * x.H * x.L, all_tiles = std::size_t(x.B) * tiles(x),
                    groups = std::size_t(workers) * x.B * x.H * groups_of_rows(x);
  take_rows(memory, x);
  some = memory.take<int2>(all_tiles), every = memory.take<int2>(all_tiles);
  stats = memory.take<float2>(size_of(x.type) <= 4 ? rows : 0);
  if (groups > 0) z_q = memory.take<float>(groups * (x.d / 8) * 128);
  bytes = memory.bytes;
}

Workspace::Workspace(const AttentionCall& x, std::byte* base) : width(backward_width(x)) {
  Arena memory{base};
  const int queries = backward_queries(width, last_stores(x), has_two_f16(x) ? 2 : 1);
  const std::size_t heads = std::size_t(x.B) * x.H, tiles = (x.L + queries - 1) / queries,
                    all = heads * tiles;
  take_rows(memory, x);
  some = memory.take<int2>(x.B * tiles);
  seen = memory.take<int>(x.B * tiles * (2 * queries + 4));
  rows = memory.take<float>(all * 2 * queries);
  counters = memory.take<int>(all * backward_blocks(width));
  z_q = memory.take<float>(all * queries * width);
  bytes = memory.bytes;
}

Workspace Workspace::of_parts(int parts, std::size_t rows, int dv, std::byte* base) {
  Workspace work;
  Arena memory{base};
  work.parts = parts;
  if (rows > 0) work.o = memory.take<float>(rows * parts * dv), work.lse = memory.take<float2>(rows * parts);
  work.bytes = memory.bytes;
  return work;
}

SplitOperands::SplitOperands(const AttentionCall& x, bool backward, bool boxes, std::byte* base)
    : terms(x.tf32 ? 1 : 2),
      width(with_constant<32, 64, 128>(std::max({x.d, x.dv, boxes && terms == 2 ? 64 : 0}),
                                       [](auto size) { return int{size}; })),
      count(backward ? 4 : 3),
      operand{{.from = x.q, .heads = x.H, .rows = x.L, .size = x.d},
              {.from = x.k, .heads = x.Hk, .rows = x.T, .size = x.d, .keys = true},
              {.from = x.v, .heads = x.Hk, .rows = x.T, .size = x.dv, .keys = true},
              {.from = x.z_o, .heads = x.H, .rows = x.L, .size = x.dv}} {
  Arena memory{base};
  for (int n = 0; n < count; ++n) {
    SplitOperand& a = operand[n];
    a.to = memory.take<__half>(std::size_t(x.B) * a.heads * a.rows * terms * width);
    a.greatest = memory.take<int2>(std::size_t(x.B) * a.heads * a.chunks());
  }
  powers = memory.take<Powers>(std::size_t(x.B) * x.Hk);
  bytes = memory.bytes;
}

}  // namespace tg::cuda::attention
