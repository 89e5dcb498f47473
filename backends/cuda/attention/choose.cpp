#include "backends/cuda/attention/decoding.h"
#include "backends/cuda/attention/division_sm90.h"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/shapes.h"
#include "ops/index.h"

namespace tg::cuda::attention {

namespace {

// Why rows cannot be copied in pieces of 16 bytes; null if they can: they begin at multiples of 16 bytes and
// have as many.
const char* obstacle_of_rows(const AttentionCall& x) {
  const int piece = 16 / static_cast<int>(size_of(x.type));
  if (x.dv == 0) return "heads of v of size 0";
  if (x.d % piece != 0 || x.dv % piece != 0) return "head sizes that are no multiple of 16 bytes";
  for (const AttentionCall::Operand& a : {x.q, x.k, x.v, x.o, x.z_o, x.z_q, x.z_k, x.z_v})
    if (!in_pieces(a, piece)) return "rows that do not begin at multiples of 16 bytes";
  return nullptr;
}

// Why tensor cores cannot compute a call; null if they can. They take bf16 and f16 with head sizes up to 576
// (q, k) and 512 (v), f32 up to 128.
const char* obstacle_on_tensor_cores(const AttentionCall& x) {
  if (x.type == DType::f64) return "f64";
  const int most = x.type == DType::f32 ? 128 : 576, most_v = x.type == DType::f32 ? 128 : 512;
  if (x.d > most || x.dv > most_v)
    return x.type == DType::f32 ? "f32 heads wider than 128" : "heads wider than 576, or 512 of v";
  return obstacle_of_rows(x);
}

// Whether kernels of decoding compute a forward: of f32 by multiply-adds, and so not where tensor cores are
// asked for.
bool decodes(const AttentionCall& x, const Gpu& gpu) {
  using enum AttentionKernels;
  const bool fits = x.type == DType::f32 ? x.kernels == best && !obstacle_of_rows(x)
                    : x.type == DType::f64
                        ? false
                        : (x.kernels == best || x.kernels == tensor_cores) && !obstacle_on_tensor_cores(x);
  return fits && decoding::takes(x, gpu);
}

// Whether latents in one piece have as many ranges of keys at fixed places as the GPU has multiprocessors,
// and so few heads that to read the keys is all that counts.
bool has_many_ranges(const AttentionCall& x, const Gpu& gpu) {
  const int ranges = 1 + decoding::ranges_by_wgmma(x).of(x.T - 1);
  return decoding::takes_few_heads(x) && x.B * ranges >= gpu.processors;
}

// Whether a block has the shared memory.
bool fits_forward(const AttentionCall& x, const Gpu& gpu) {
  return with_shape<128, 192, 256, 576>(x, [&](auto d, auto dv, auto) {
    return fitting_stages<forward::Shape<of_16_bits, d, dv, any>>(gpu) > 0;
  });
}
bool fits_one_pass(const AttentionCall& x, const Gpu& gpu) {
  using namespace one_pass;
  return one_pass::with_shape(x, [&](auto d, auto dv, auto options) {
    return fitting_stages<Shape<by_key, d, dv, options>>(gpu) > 0 &&
           fitting_stages<Shape<by_query, d, dv, options>>(gpu) > 0;
  });
}

// Why Hopper's own kernels cannot compute a call that fits tensor cores; null if they can.
const char* obstacle_on_hopper(const AttentionCall& x, bool backward) {
  if (backward && (x.d > 256 || x.dv > 256)) return "wider heads than 256";
  if (x.bias.data) return "bias";
  if (x.dropout > 0) return "dropout";
  if (x.B == 0 || x.H == 0 || x.L == 0 || x.T == 0) return "nothing to multiply";
  if (x.type == DType::f32) return nullptr;  // operands are copies
  const auto expanded = [](const AttentionCall::Operand& a, std::int64_t batch, int heads, int rows) {
    return (a.batch == 0 && batch > 1) || (a.head == 0 && heads > 1) || (a.row == 0 && rows > 1);
  };
  if (expanded(x.q, x.B, x.H, x.L) || expanded(x.k, x.B, x.Hk, x.T) || expanded(x.v, x.B, x.Hk, x.T))
    return "an expanded operand";
  if (backward && expanded(x.z_o, x.B, x.H, x.L)) return "an expanded operand";
  return nullptr;
}

// The fewest that keep nearly all of the GPU busy; each takes B·H·L·d floats of memory. For short sequences,
// clearing and reducing z_Q's sums costs more than one pass saves. 0: two passes are faster.
int one_pass_workers(const AttentionCall& x, const Gpu& gpu) {
  constexpr int most = 8, least_keys = 1024;
  using i64 = std::int64_t;
  if (x.free_order) return 1;
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

// Of a forward on Hopper.
Workspace forward_workspace(const AttentionCall& x, const Gpu& gpu, std::byte* base) {
  Workspace work;
  Arena memory{base};
  if (x.type == DType::f32) return work;  // its kernels take all keys
  work.parts = parts_of_keys(with_heads_as_rows(x), gpu);
  if (work.parts > 1) {
    const std::size_t rows = std::size_t(work.parts) * x.B * x.H * x.L;
    work.o = memory.take<float>(rows * x.dv), work.lse = memory.take<float2>(rows);
  }
  work.bytes = memory.bytes;
  return work;
}

// Throws if the path is not among the kernels that the call asks for.
void require_asked(const AttentionCall& x, Path path, const Gpu& gpu, const char* obstacle) {
  const bool wgmma = x.kernels == AttentionKernels::wgmma;
  if (wgmma ? path == Path::hopper : x.kernels != AttentionKernels::tensor_cores || path != Path::plain)
    return;
  const char* why = obstacle_on_tensor_cores(x);
  if (!why) why = obstacle ? obstacle : "more shared memory than a block of this GPU has";
  if (wgmma && !gpu.hopper)
    why = gpu.capability == 90 ? "the library was compiled without sm_90a" : "the GPU is not a Hopper";
  throw DeviceError("kernels = " + std::string(name_of(x.kernels)) + ": " + why);
}

void require_batch(const AttentionCall& x) {
  if (x.B > INT32_MAX) throw DeviceError("attention takes batches below 2^31");
}

// Rows of k, or v, of a cache that are those of an index_assign's tensor: all rows of all heads, in order.
bool is_cache(const AttentionCall::Operand& a, int rows, int heads, const Arg& tensor) {
  const Layout& l = tensor.layout;
  return a.data == tensor.data && l.rank() == 3 && l.is_contiguous() && l.shape[1] == heads &&
         a.row == l.strides[0] && (heads == 1 || a.head == l.strides[1]) && a.batch == rows * a.row &&
         l.shape[0] <= INT32_MAX;
}

AttentionCall call_of(const Call& call) {
  const AttentionAttrs& attrs = call.attrs->as<AttentionAttrs>();
  AttentionCall x = attention_call(call.in, call.out, attrs);
  require_batch(x);
  x.tf32 = call.tf32;
  const Arg* const lengths = detail::AttentionOperands<Arg>(call.in, attrs).lengths;
  x.fixed_places = !lengths || is_constant(*lengths, call);
  x.free_order = x.free_order && !call.in_order;
  x.fixed_keys = is_constant(call.in[1], call) && is_constant(call.in[2], call);
  return x;
}

}  // namespace

Choice::Choice(const Call& call, std::byte* base)
    : Choice(call_of(call), call.attrs->as<AttentionAttrs>().backward, call.gpu, base, call.rows_alone) {}

Choice::Choice(const AttentionCall& call, bool backward, const Gpu& gpu, std::byte* base, bool rows_alone)
    : x(call) {
  // Of wide heads in one piece wgmma reads keys faster, in parts whose number depends on the batch.
  const bool wide_by_wgmma = is_wide(x) && x.type != DType::f32 && !x.table && gpu.hopper && !rows_alone &&
                             x.kernels == AttentionKernels::best && !obstacle_on_hopper(x, backward);
  const bool tensor_cores = x.kernels != AttentionKernels::plain && !obstacle_on_tensor_cores(x),
             latents = tensor_cores && !backward && x.kernels == AttentionKernels::best &&
                       decoding::takes_by_wgmma(x, gpu) && (x.table || rows_alone || has_many_ranges(x, gpu)),
             few_queries = !backward && !wide_by_wgmma && !latents && decodes(x, gpu),
             without_pages = tensor_cores && !few_queries && !latents && !x.table,
             own = without_pages && gpu.hopper && x.kernels != AttentionKernels::tensor_cores,
             fits = backward ? fits_one_pass(x, gpu) : fits_forward(x, gpu);
  int workers = 0;
  obstacle = own ? obstacle_on_hopper(x, backward) : nullptr;
  if (latents) {
    path = Path::latents;
  } else if (few_queries) {
    path = Path::decoding;
  } else if (own && !obstacle) {
    path = Path::hopper;
  } else if (without_pages && x.type == DType::f32) {
    path = Path::f32;
  } else if (without_pages && (fits || !is_wide(x))) {
    if (backward && fits) workers = one_pass_workers(x, gpu);
    path = workers > 0 ? Path::one_pass : is_wide(x) ? Path::wide : Path::narrow;
  }
  require_asked(x, path, gpu, obstacle);
  if (backward && path != Path::hopper) work = {x, workers, base};
  if (path == Path::decoding) work = decoding::workspace(x, base);
  if (path == Path::latents) work = decoding::workspace_by_wgmma(x, base);
  if (path == Path::hopper) work = backward ? Workspace(x, base) : forward_workspace(x, gpu, base);
  if (x.type == DType::f32 && path != Path::plain && path != Path::decoding)
    split.emplace(x, backward, path == Path::hopper, base + work.bytes);
}

std::optional<AttentionCall::Added> added_before(const Choice& c, const Call& call, const Step& step) {
  const AttentionCall& x = c.x;
  constexpr int slice = 32;  // keys, at most
  const int rows = x.table ? x.page : x.T;
  if (c.path != Path::decoding || decoding::is_of_latents(x) || x.L != 1 ||
      !decoding::is_apart(x, c.work.parts, call.gpu) || !x.fixed_places || step.out.size() != 2 ||
      step.attrs.as<AxisAttrs>().axis != 0)
    return std::nullopt;
  if (x.table && rows % slice != 0 && slice % rows != 0) return std::nullopt;
  const Arg &k = step.in[1], &v = step.in[3], &indices = step.in[4];
  const bool in_place = step.in[0].data == step.out[0].data && step.in[2].data == step.out[1].data;
  if (!in_place || !is_cache(x.k, rows, x.Hk, step.out[0]) || !is_cache(x.v, rows, x.Hk, step.out[1]) ||
      call.written->others_write(step.out[0], &step) || call.written->others_write(step.out[1], &step))
    return std::nullopt;
  if (indices.dtype != DType::i32 || !indices.layout.is_contiguous() || indices.layout.numel() != x.B ||
      !is_constant(indices, call))
    return std::nullopt;
  // Blocks write results while others still read what is added.
  for (const Arg& out : call.out)
    for (const Arg* from : {&k, &v})
      if (overlap(range_of(out), range_of(*from))) return std::nullopt;
  // Of what is added: the axes of the indices, of which one has a size, heads, numbers.
  const auto operand = [&](const Arg& a) -> AttentionCall::Operand {
    const int last = a.layout.rank() - 1;
    std::int64_t each = 0;
    for (int axis = 0; axis + 1 < last; ++axis)
      if (a.layout.shape[axis] > 1) each = a.layout.strides[axis];
    return {a.data, each, a.layout.strides[last - 1], 0};
  };
  const auto has_one_axis = [](const Layout& l) {
    int axes = 0;
    for (int axis = 0; axis < l.rank(); ++axis) axes += l.shape[axis] > 1;
    return axes <= 1;
  };
  const AttentionCall::Added added{reinterpret_cast<const std::int32_t*>(indices.data), static_cast<int>(x.B),
                                   operand(k), operand(v)};
  const int piece = 16 / static_cast<int>(size_of(x.type));
  const bool in_pieces_of_16 = in_pieces(added.k, piece) && in_pieces(added.v, piece) &&
                               k.layout.strides[k.layout.rank() - 1] == 1 &&
                               v.layout.strides[v.layout.rank() - 1] == 1;
  return has_one_axis(indices.layout) && in_pieces_of_16 ? std::optional(added) : std::nullopt;
}

Choice paged_choice(const Call& call, std::byte* base) {
  AttentionCall x = paged_attention_call(call.in, call.out, call.attrs->as<PagedAttentionAttrs>());
  require_batch(x);
  x.tf32 = call.tf32;
  x.fixed_places = is_constant(call.in[3], call) && is_constant(call.in[4], call);
  x.fixed_keys = is_constant(call.in[1], call) && is_constant(call.in[2], call);
  return {x, false, call.gpu, base};
}

AttentionCall Choice::operands() const {
  AttentionCall to = x;
  AttentionCall::Operand* const operands[] = {&to.q, &to.k, &to.v, &to.z_o};
  for (int n = 0; split && n < split->count; ++n) {
    const SplitOperands::Operand& a = split->operand[n];
    const std::int64_t row = split->terms * split->width, head = row * a.rows;
    *operands[n] = {a.to, head * a.heads, head, row};
  }
  return to;
}

std::string Choice::in_words() const {
  // In the order of Path.
  const char* const words[] = {
      "plain multiply-adds",
      "tensor cores",
      "tensor cores",
      "tensor cores, wide heads",
      x.free_order ? "tensor cores, one pass in free order" : "tensor cores, one pass in order",
      "tensor cores, wgmma",
      x.type == DType::f32 ? "multiply-adds, decoding" : "tensor cores, decoding",
      "tensor cores, wgmma, decoding"};
  std::string text = words[static_cast<int>(path)];
  if (split) text += split->terms == 1 ? ", f32 as halves of one term" : ", f32 as halves of two terms";
  if (path == Path::hopper && work.parts > 1) text += ", keys in " + std::to_string(work.parts) + " parts";
  const bool decodes = path == Path::decoding || path == Path::latents;
  if (decodes && x.table)
    text += ", a cache in pages";
  else if (path == Path::latents)
    text += ", ranges of " + std::to_string(decoding::ranges_by_wgmma(x).each) + " keys";
  else if (path == Path::decoding && work.parts > 1)
    text += ", ranges of " + std::to_string(decoding::ranges_in_one_piece(x).each) + " keys";
  return text + (obstacle ? std::string(", no wgmma: ") + obstacle : "");
}

bool in_pieces(const AttentionCall::Operand& a, int piece) {
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
  const int queries = backward_queries(width, last_stores(x), is_of_two_terms(x) ? 2 : 1);
  const std::size_t heads = std::size_t(x.B) * x.H, tiles = (x.L + queries - 1) / queries,
                    all = heads * tiles;
  take_rows(memory, x);
  some = memory.take<int2>(x.B * tiles);
  seen = memory.take<int>(x.B * tiles * (2 * queries + 4));
  rows = memory.take<float>(all * 2 * queries);
  turns = memory.take<int>(all * backward_blocks(width));
  z_q = memory.take<float>(all * queries * width);
  bytes = memory.bytes;
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
    Operand& a = operand[n];
    a.to = memory.take<__half>(std::size_t(x.B) * a.heads * a.rows * terms * width);
    a.greatest = memory.take<int2>(std::size_t(x.B) * a.heads * a.chunks());
  }
  powers = memory.take<Powers>(std::size_t(x.B) * x.Hk);
  bytes = memory.bytes;
}

}  // namespace tg::cuda::attention
