// The table of attention kernels: which calls each kernel computes.
#include "backends/cuda/attention/decoding/decoding.h"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/ropes.h"
#include "backends/cuda/attention/shapes.h"

namespace tg::cuda::attention {

namespace {

// Why rows cannot be copied in 16-byte pieces; null if they can. Each row must be aligned to 16 bytes, and
// its size must be a multiple of 16 bytes.
const char* reason_against_rows(const AttentionCall& x) {
  const int piece = 16 / static_cast<int>(size_of(x.type));
  if (x.dv == 0) return "heads of v of size 0";
  if (x.d % piece != 0 || x.dv % piece != 0) return "head sizes that are not a multiple of 16 bytes";
  for (const AttentionCall::TensorView& a : {x.q, x.k, x.v, x.o, x.z_o, x.z_q, x.z_k, x.z_v})
    if (!in_pieces(a, piece)) return "rows that do not begin at multiples of 16 bytes";
  return nullptr;
}

// Why tensor cores cannot compute a call; null if they can. They support bf16 and f16 with head sizes up to
// 576 (q, k) and 512 (v), and f32 with head sizes up to 128.
const char* reason_against_tensor_cores(const AttentionCall& x) {
  if (x.type == DType::f64) return "f64";
  const int most = x.type == DType::f32 ? 128 : 576, most_v = x.type == DType::f32 ? 128 : 512;
  if (x.d > most || x.dv > most_v)
    return x.type == DType::f32 ? "f32 heads wider than 128" : "heads wider than 576, or 512 of v";
  return reason_against_rows(x);
}

// Whether MLA latents in a contiguous cache have at least one fixed key range per multiprocessor. They must
// also have so few heads that reading the keys is the bottleneck.
bool has_many_ranges(const AttentionCall& x, const Gpu& gpu) {
  const int ranges = 1 + decoding::ranges_by_wgmma(x).of(x.T - 1);
  return decoding::takes_few_heads(x) && x.B * ranges >= gpu.processors;
}

// Whether a block has enough shared memory.
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

// Why Hopper's own kernels cannot compute a call that tensor cores support; null if they can.
const char* reason_against_hopper(const AttentionCall& x, bool backward) {
  if (backward && (x.d > 256 || x.dv > 256)) return "wider heads than 256";
  if (x.bias.data) return "bias";
  if (x.dropout > 0) return "dropout";
  if (x.B == 0 || x.H == 0 || x.L == 0 || x.T == 0) return "nothing to multiply";
  if (x.type == DType::f32) return nullptr;  // operands are copied
  const auto expanded = [](const AttentionCall::TensorView& a, std::int64_t batch, int heads, int rows) {
    return (a.batch == 0 && batch > 1) || (a.head == 0 && heads > 1) || (a.row == 0 && rows > 1);
  };
  if (expanded(x.q, x.B, x.H, x.L) || expanded(x.k, x.B, x.Hk, x.T) || expanded(x.v, x.B, x.Hk, x.T))
    return "an expanded operand";
  if (backward && expanded(x.z_o, x.B, x.H, x.L)) return "an expanded operand";
  return nullptr;
}

// Number of blocks per key head for the deterministic one-pass kernel: the smallest number that keeps nearly
// all of the GPU busy. Each block needs B·H·L·d floats of memory. 0 selects two passes. For short sequences,
// clearing and reducing the z_Q accumulators costs more time than one pass saves.
int one_pass_workers(const AttentionCall& x, const Gpu& gpu) {
  constexpr int most = 8, least_keys = 1024;
  using i64 = std::int64_t;
  if (x.nondeterministic) return 1;
  if (is_wide(x) || x.T < least_keys) return 0;
  const one_pass::Cut c = one_pass::with_shape(
      x, [](auto d, auto dv, auto options) { return one_pass::cut<one_pass::by_key, d, dv, options>(); });
  // A multiprocessor holds 8 warps whose threads have the maximum number of registers.
  const i64 heads = i64{x.B} * x.Hk, pieces = (x.T + c.kept - 1) / c.kept,
            places = i64{gpu.processors} * 8 / c.warps;
  for (const double needed : {0.95, 0.9, 0.85})
    for (int workers = 1; workers <= most; ++workers) {
      const i64 times = (heads * workers + places - 1) / places * ((pieces + workers - 1) / workers);
      if (double(heads * pieces) >= needed * double(times * places)) return workers;
    }
  return 0;
}

// Workspace of a forward on Hopper.
Workspace forward_workspace(const AttentionCall& x, const Gpu& gpu, std::byte* base) {
  if (x.type == DType::f32) return {};  // its kernels do not split keys
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

// Whether the portable tensor-core kernels compute a call. They need contiguous k and v.
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
// Whether the short-heads kernel computes a call on Hopper. One block processes all queries and keys of a
// head. Each head must have its own keys, and all blocks must run concurrently. It is not used with
// batch_invariant, because the number of heads depends on the batch. It is not used either if the call
// requests a specific kernel family.
bool has_short_heads(const Candidate& c) {
  constexpr int longest = 64, widest = 64;
  const AttentionCall& x = c.x;
  const bool is_plain =
      has_plain_scores(x) && !x.bias.data && !x.sink && x.dropout == 0 && !x.cu_q && !x.lengths && !x.table;
  return is_on_hopper(c) && !c.batch_invariant && x.kernels == AttentionKernels::best &&
         size_of(x.type) == 2 && is_plain && x.H == x.Hk && x.L <= longest && x.T <= longest &&
         x.d <= widest && x.dv <= widest && x.B * x.H <= 2 * c.gpu.processors;
}
// For wide heads in a contiguous cache, the wgmma kernel reads keys faster than the decoding kernels. It
// splits the keys into parts, whose number depends on the batch.
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
    "on Hopper, bf16, f16: few heads of size ≤ 64, H = Hk, and at most 64 queries and keys; no bias, sink, "
    "softcap, dropout, packed sequences, lengths or batch_invariant";

constexpr AttentionKernel kernels[] = {
    {KernelFamily::latents, forward, "tensor cores, wgmma, decoding",
     "MLA latents of at least 16 heads, on Hopper: a paged cache, or a contiguous one with batch_invariant "
     "or with at least one key range per multiprocessor",
     &reads_latents,
     [](const AttentionCall& x, const Gpu&, std::byte* base) {
       return decoding::workspace_by_wgmma(x, base);
     },
     &launch_latents_sm90},
    {KernelFamily::decoding, forward, "multiply-adds, decoding",
     "f32: few queries, or a paged cache; head size ≤ 256",
     [](const Candidate& c) { return decodes(c, true); }, &decoding_workspace, &launch_decoding},
    {KernelFamily::decoding, forward, "tensor cores, decoding",
     "bf16, f16: few queries, or a paged cache; on Hopper without batch_invariant, a contiguous cache of "
     "wide heads uses wgmma instead",
     [](const Candidate& c) { return decodes(c, false); }, &decoding_workspace, &launch_decoding},
    {KernelFamily::short_heads, forward, "tensor cores, short sequences", few_short_heads, &has_short_heads,
     nullptr,
     [](const Stream& s, const AttentionCall& x, const Workspace& work, const Powers*) {
       launch_short_forward(s, x, work, {});
     },
     &launch_short_forward},
    {KernelFamily::hopper, forward, "tensor cores, wgmma", "on Hopper, no bias, dropout or expanded operands",
     &is_on_hopper, &forward_workspace, &launch_forward_sm90},
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
     "on Hopper: head size ≤ 256, no bias, dropout or expanded operands", &is_on_hopper,
     [](const AttentionCall& x, const Gpu&, std::byte* base) { return Workspace(x, base); },
     &launch_backward_sm90, &launch_rotated_backward_sm90},
    {KernelFamily::f32, backward, "tensor cores", "f32: head size ≤ 128", &is_of_f32, &two_passes_workspace,
     &launch_two_passes},
    {KernelFamily::one_pass, backward, "tensor cores, one pass, nondeterministic",
     "bf16, f16: with nondeterministic, if a block has the shared memory",
     [](const Candidate& c) { return is_portable(c) && c.x.nondeterministic && fits_one_pass(c.x, c.gpu); },
     &one_pass_workspace, &launch_one_pass},
    {KernelFamily::one_pass, backward, "tensor cores, one pass, deterministic",
     "bf16, f16: head size ≤ 128 and at least 1,024 keys, if few z_q accumulators keep the GPU busy and a "
     "block has the shared memory",
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
