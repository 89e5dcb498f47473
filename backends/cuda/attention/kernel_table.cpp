// The table of attention's kernels: which calls each computes.
#include "backends/cuda/attention/decoding/decoding.h"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/ropes.h"
#include "backends/cuda/attention/shapes.h"

namespace tg::cuda::attention {

namespace {

// Why rows cannot be copied in pieces of 16 bytes; null if they can. Each row must begin at a multiple of 16
// bytes, and its size must be a multiple of 16 bytes.
const char* reason_against_rows(const AttentionCall& x) {
  const int piece = 16 / static_cast<int>(size_of(x.type));
  if (x.dv == 0) return "heads of v of size 0";
  if (x.d % piece != 0 || x.dv % piece != 0) return "head sizes that are no multiple of 16 bytes";
  for (const AttentionCall::TensorView& a : {x.q, x.k, x.v, x.o, x.z_o, x.z_q, x.z_k, x.z_v})
    if (!in_pieces(a, piece)) return "rows that do not begin at multiples of 16 bytes";
  return nullptr;
}

// Why tensor cores cannot compute a call; null if they can. They support bf16 and f16 with head sizes up to
// 576 (q, k) and 512 (v), and f32 up to 128.
const char* reason_against_tensor_cores(const AttentionCall& x) {
  if (x.type == DType::f64) return "f64";
  const int most = x.type == DType::f32 ? 128 : 576, most_v = x.type == DType::f32 ? 128 : 512;
  if (x.d > most || x.dv > most_v)
    return x.type == DType::f32 ? "f32 heads wider than 128" : "heads wider than 576, or 512 of v";
  return reason_against_rows(x);
}

// Whether latents in one piece have a range of keys at a fixed position for each multiprocessor, and so few
// heads that reading the keys limits the speed.
bool has_many_ranges(const AttentionCall& x, const Gpu& gpu) {
  const int ranges = 1 + decoding::ranges_by_wgmma(x).of(x.T - 1);
  return decoding::takes_few_heads(x) && x.B * ranges >= gpu.processors;
}

// Whether a block has the shared memory.
bool fits_forward(const AttentionCall& x, const Gpu& gpu) {
  return with_shape<128, 192, 256, 576>(x, [&](auto d, auto dv, auto) {
    return fitting_stages<forward::TileShape<of_16_bits, d, dv, any>>(gpu) > 0;
  });
}
bool fits_one_pass(const AttentionCall& x, const Gpu& gpu) {
  using namespace one_pass;
  return one_pass::with_shape(x, [&](auto d, auto dv, auto options) {
    return fitting_stages<TileShape<by_key, d, dv, options>>(gpu) > 0 &&
           fitting_stages<TileShape<by_query, d, dv, options>>(gpu) > 0;
  });
}

// Why Hopper's own kernels cannot compute a call that fits tensor cores; null if they can.
const char* reason_against_hopper(const AttentionCall& x, bool backward) {
  if (backward && (x.d > 256 || x.dv > 256)) return "wider heads than 256";
  if (x.bias.data) return "bias";
  if (x.dropout > 0) return "dropout";
  if (x.B == 0 || x.H == 0 || x.L == 0 || x.T == 0) return "nothing to multiply";
  if (x.type == DType::f32) return nullptr;  // operands are copies
  const auto expanded = [](const AttentionCall::TensorView& a, std::int64_t batch, int heads, int rows) {
    return (a.batch == 0 && batch > 1) || (a.head == 0 && heads > 1) || (a.row == 0 && rows > 1);
  };
  if (expanded(x.q, x.B, x.H, x.L) || expanded(x.k, x.B, x.Hk, x.T) || expanded(x.v, x.B, x.Hk, x.T))
    return "an expanded operand";
  if (backward && expanded(x.z_o, x.B, x.H, x.L)) return "an expanded operand";
  return nullptr;
}

// The fewest that keep nearly all of the GPU busy; each needs B·H·L·d floats of memory. For short sequences,
// clearing and reducing z_Q's sums costs more than one pass saves. 0: two passes are faster.
int one_pass_workers(const AttentionCall& x, const Gpu& gpu) {
  constexpr int most = 8, least_keys = 1024;
  using i64 = std::int64_t;
  if (x.nondeterministic) return 1;
  if (is_wide(x) || x.T < least_keys) return 0;
  const one_pass::Cut c = one_pass::with_shape(
      x, [](auto d, auto dv, auto options) { return one_pass::cut<one_pass::by_key, d, dv, options>(); });
  // Each processor has room for 8 warps with all the registers that a thread can have.
  const i64 heads = i64{x.B} * x.Hk, pieces = (x.T + c.kept - 1) / c.kept,
            places = i64{gpu.processors} * 8 / c.warps;
  for (const double needed : {0.95, 0.9, 0.85})
    for (int workers = 1; workers <= most; ++workers) {
      const i64 times = (heads * workers + places - 1) / places * ((pieces + workers - 1) / workers);
      if (double(heads * pieces) >= needed * double(times * places)) return workers;
    }
  return 0;
}

// For a forward on Hopper.
Workspace forward_workspace(const AttentionCall& x, const Gpu& gpu, std::byte* base) {
  if (x.type == DType::f32) return {};  // its kernels take all keys
  const int parts = parts_of_keys(with_heads_as_rows(x), gpu);
  return Workspace::of_parts(parts, parts > 1 ? std::size_t(x.B) * x.H * x.L : 0, x.dv, base);
}

Workspace decoding_workspace(const AttentionCall& x, const Gpu&, std::byte* base) {
  return decoding::workspace(x, base);
}
Workspace two_passes_workspace(const AttentionCall& x, const Gpu&, std::byte* base) {
  return {x, 0, base};
}
Workspace one_pass_workspace(const AttentionCall& x, const Gpu& gpu, std::byte* base) {
  return {x, one_pass_workers(x, gpu), base};
}

bool may_be_on_tensor_cores(const Candidate& c) {
  return c.x.kernels != AttentionKernels::plain && !c.on_tensor_cores;
}

// In one piece, by the portable kernels for tensor cores.
bool is_portable(const Candidate& c) {
  return may_be_on_tensor_cores(c) && !c.x.table;
}
bool is_on_hopper(const Candidate& c) {
  return may_be_on_hopper(c) && !c.on_hopper;
}
bool reads_latents(const Candidate& c) {
  return may_be_on_tensor_cores(c) && c.x.kernels == AttentionKernels::best &&
         decoding::takes_by_wgmma(c.x, c.gpu) &&
         (c.x.table || c.batch_invariant || has_many_ranges(c.x, c.gpu));
}
// Whether a block each computes the heads of a call for Hopper with all their queries and keys, and all run
// at the same time: each head has keys of its own. A call that asks for certain kernels has them. Not with
// batch_invariant: whether there are few heads depends on the batch.
bool has_short_heads(const Candidate& c) {
  constexpr int longest = 64, widest = 64;
  const AttentionCall& x = c.x;
  const bool is_plain =
      has_plain_scores(x) && !x.bias.data && !x.sink && x.dropout == 0 && !x.cu_q && !x.lengths && !x.table;
  return is_on_hopper(c) && !c.batch_invariant && x.kernels == AttentionKernels::best &&
         size_of(x.type) == 2 && is_plain && x.H == x.Hk && x.L <= longest && x.T <= longest &&
         x.d <= widest && x.dv <= widest && x.B * x.H <= 2 * c.gpu.processors;
}
// For wide heads in one piece, wgmma reads keys faster. It reads them in parts, whose number depends on the
// batch.
bool decodes(const Candidate& c, bool of_f32) {
  const AttentionCall& x = c.x;
  using enum AttentionKernels;
  const bool wide_by_wgmma = is_wide(x) && !of_f32 && !x.table && c.gpu.hopper && !c.batch_invariant &&
                             x.kernels == best && !c.on_hopper,
             fits = of_f32 ? x.kernels == best && !reason_against_rows(x)
                           : (x.kernels == best || x.kernels == tensor_cores) && !c.on_tensor_cores;
  return (x.type == DType::f32) == of_f32 && fits && !wide_by_wgmma && decoding::takes(x, c.gpu);
}
bool is_of_f32(const Candidate& c) {
  return is_portable(c) && c.x.type == DType::f32;
}
bool is_narrow(const Candidate& c) {
  return is_portable(c) && !is_wide(c.x);
}
bool any(const Candidate&) {
  return true;
}

constexpr bool forward = false, backward = true;
constexpr char few_short_heads[] =
    "on Hopper, bf16, f16: few heads of size ≤ 64, each with keys of its own, and at most 64 queries and "
    "keys; without bias, sink, softcap, dropout, packed sequences, lengths and batch_invariant";

constexpr AttentionKernel kernels[] = {
    {KernelFamily::latents, forward, "tensor cores, wgmma, decoding",
     "latents of at least 16 heads on Hopper: in pages; in one piece with batch_invariant, or with as many "
     "ranges "
     "of keys as multiprocessors",
     &reads_latents,
     [](const AttentionCall& x, const Gpu&, std::byte* base) {
       return decoding::workspace_by_wgmma(x, base);
     },
     &launch_latents_sm90},
    {KernelFamily::decoding, forward, "multiply-adds, decoding",
     "f32: few queries, or a cache in pages; head size ≤ 256",
     [](const Candidate& c) { return decodes(c, true); }, &decoding_workspace, &launch_decoding},
    {KernelFamily::decoding, forward, "tensor cores, decoding",
     "bf16, f16: few queries, or a cache in pages; not wide heads in one piece on Hopper without "
     "batch_invariant",
     [](const Candidate& c) { return decodes(c, false); }, &decoding_workspace, &launch_decoding},
    {KernelFamily::short_heads, forward, "tensor cores, short sequences", few_short_heads, &has_short_heads,
     nullptr,
     [](const Stream& s, const AttentionCall& x, const Workspace& work, const Powers*) {
       launch_short_forward(s, x, work, {});
     },
     &launch_short_forward},
    {KernelFamily::hopper, forward, "tensor cores, wgmma",
     "on Hopper, without bias, dropout and expanded operands", &is_on_hopper, &forward_workspace,
     &launch_forward_sm90},
    {KernelFamily::f32, forward, "tensor cores", "f32: head size ≤ 128", &is_of_f32, nullptr,
     &launch_forward},
    {KernelFamily::narrow, forward, "tensor cores", "bf16, f16: head size ≤ 128", &is_narrow, nullptr,
     &launch_forward},
    {KernelFamily::wide, forward, "tensor cores, wide heads",
     "bf16, f16: head size ≤ 576 (q, k) and 512 (v), if a block has the shared memory",
     [](const Candidate& c) { return is_portable(c) && fits_forward(c.x, c.gpu); }, nullptr, &launch_forward},
    {KernelFamily::plain, forward, "plain multiply-adds", "all other calls", &any, nullptr,
     &launch_plain_forward},

    {KernelFamily::short_heads, backward, "tensor cores, short sequences", few_short_heads, &has_short_heads,
     nullptr,
     [](const Stream& s, const AttentionCall& x, const Workspace& work, const Powers*) {
       launch_short_backward(s, x, work, {});
     },
     &launch_short_backward},
    {KernelFamily::hopper, backward, "tensor cores, wgmma",
     "on Hopper: head size ≤ 256, without bias, dropout and expanded operands", &is_on_hopper,
     [](const AttentionCall& x, const Gpu&, std::byte* base) { return Workspace(x, base); },
     &launch_backward_sm90, &launch_turned_backward_sm90},
    {KernelFamily::f32, backward, "tensor cores", "f32: head size ≤ 128", &is_of_f32, &two_passes_workspace,
     &launch_two_passes},
    {KernelFamily::one_pass, backward, "tensor cores, one pass in free order",
     "bf16, f16: with nondeterministic, if a block has the shared memory",
     [](const Candidate& c) { return is_portable(c) && c.x.nondeterministic && fits_one_pass(c.x, c.gpu); },
     &one_pass_workspace, &launch_one_pass},
    {KernelFamily::one_pass, backward, "tensor cores, one pass in order",
     "bf16, f16: head size ≤ 128 and at least 1,024 keys, if few sums of z_q keep the GPU busy and a block "
     "has the shared memory",
     [](const Candidate& c) {
       return is_portable(c) && fits_one_pass(c.x, c.gpu) && one_pass_workers(c.x, c.gpu) > 0;
     },
     &one_pass_workspace, &launch_one_pass},
    {KernelFamily::narrow, backward, "tensor cores", "bf16, f16: head size ≤ 128", &is_narrow,
     &two_passes_workspace, &launch_two_passes},
    {KernelFamily::wide, backward, "tensor cores, wide heads",
     "bf16, f16: head size ≤ 576 (q, k) and 512 (v), if a block has the shared memory",
     [](const Candidate& c) { return is_portable(c) && fits_one_pass(c.x, c.gpu); }, &two_passes_workspace,
     &launch_one_pass},
    {KernelFamily::plain, backward, "plain multiply-adds", "all other calls", &any, &two_passes_workspace,
     &launch_plain_backward}};

}  // namespace

Candidate::Candidate(const AttentionCall& x, bool backward, const Gpu& gpu, bool batch_invariant)
    : x(x),
      backward(backward),
      gpu(gpu),
      batch_invariant(batch_invariant),
      on_tensor_cores(reason_against_tensor_cores(x)),
      on_hopper(reason_against_hopper(x, backward)) {}

bool may_be_on_hopper(const Candidate& c) {
  return is_portable(c) && c.gpu.hopper && c.x.kernels != AttentionKernels::tensor_cores;
}

std::span<const AttentionKernel> attention_kernels() {
  return kernels;
}

}  // namespace tg::cuda::attention
