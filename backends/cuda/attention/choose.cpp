#include "backends/cuda/attention/choose.h"

#include "backends/cuda/attention/shapes.h"

namespace tg::cuda::attention {

namespace {

// Tensor cores take rows that begin at multiples of 16 bytes and have as many; bf16 and f16 with head sizes
// up to 576 (q, k) and 512 (v), f32 up to 128.
bool fits_tensor_cores(const AttentionCall& x) {
  if (x.type == DType::f64) return false;
  const int piece = 16 / static_cast<int>(size_of(x.type)), most = x.type == DType::f32 ? 128 : 576,
            most_v = x.type == DType::f32 ? 128 : 512;
  if (x.d % piece != 0 || x.dv % piece != 0 || x.d > most || x.dv > most_v || x.dv == 0) return false;
  for (const AttentionCall::Operand& a : {x.q, x.k, x.v, x.o, x.z_o, x.z_q, x.z_k, x.z_v})
    if (!in_pieces(a, piece)) return false;
  return true;
}

// Whether a block has the shared memory.
bool fits_wide_forward(const AttentionCall& x, const Gpu& gpu) {
  return with_wide_sizes(x, [&](auto d, auto dv) {
    return forward::Shape<of_16_bits, d, dv, any>::fitting_stages(gpu.shared_per_block) > 0;
  });
}
bool fits_wide_backward(const AttentionCall& x, const Gpu& gpu) {
  using namespace one_pass;
  return with_wide_sizes(x, [&](auto d, auto dv) {
    return Shape<by_key, d, dv, any>::fitting_stages(gpu.shared_per_block) > 0 &&
           Shape<by_query, d, dv, any>::fitting_stages(gpu.shared_per_block) > 0;
  });
}
bool fits_one_pass(const AttentionCall& x, const Gpu& gpu) {
  using namespace one_pass;
  if (is_wide(x)) return fits_wide_backward(x, gpu);
  return with_shape(x, [&](auto size, auto options) {
    return Shape<by_key, size, size, options>::fitting_stages(gpu.shared_per_block) > 0;
  });
}

}  // namespace

bool in_pieces(const AttentionCall::Operand& a, int piece) {
  return reinterpret_cast<std::uintptr_t>(a.data) % 16 == 0 && a.batch % piece == 0 && a.head % piece == 0 &&
         a.row % piece == 0;
}

AttentionCall call_of(const Call& call) {
  AttentionCall x = attention_call(call.in, call.out, call.attrs->as<AttentionAttrs>());
  if (x.B > INT32_MAX) throw DeviceError("attention takes batches below 2^31");
  x.tf32 = call.tf32;
  x.free_order = x.free_order && !call.in_order;
  return x;
}

Path forward_path(const AttentionCall& x, const Gpu& gpu) {
  if (!fits_tensor_cores(x)) return Path::plain;
  if (x.type == DType::f32) return Path::f32;
  if (!is_wide(x)) return Path::narrow;
  return fits_wide_forward(x, gpu) ? Path::wide : Path::plain;
}

Path backward_path(const AttentionCall& x, const Gpu& gpu) {
  if (!fits_tensor_cores(x) || (is_wide(x) && !fits_wide_backward(x, gpu))) return Path::plain;
  if (x.type == DType::f32) return Path::f32;
  if (one_pass_walkers(x, gpu) > 0) return Path::one_pass;
  return is_wide(x) ? Path::wide : Path::narrow;
}

// The fewest that keep nearly all of the GPU busy; each takes B·H·L·d floats of memory. For short sequences,
// clearing and reducing z_Q's sums costs more than one pass saves.
int one_pass_walkers(const AttentionCall& x, const Gpu& gpu) {
  constexpr int most = 8, least_keys = 1024;
  using i64 = std::int64_t;
  if (!fits_one_pass(x, gpu)) return 0;
  if (x.free_order) return 1;
  if (is_wide(x) || x.T < least_keys) return 0;
  const one_pass::Cut c = one_pass::with_shape(
      x, [](auto size, auto options) { return one_pass::cut<one_pass::by_key, size, size, options>(); });
  const i64 heads = i64{x.B} * x.Hk, pieces = (x.T + c.kept - 1) / c.kept,
            places =
                i64{gpu.processors} * 8 / c.warps;  // warps with all the registers that a thread can have
  for (const double wanted : {0.95, 0.9, 0.85})
    for (int walkers = 1; walkers <= most; ++walkers) {
      const i64 times = (heads * walkers + places - 1) / places * ((pieces + walkers - 1) / walkers);
      if (double(heads * pieces) >= wanted * double(times * places)) return walkers;
    }
  return 0;
}

Workspace::Workspace(const AttentionCall& x, int sums_of_z_q, std::byte* base) : walkers(sums_of_z_q) {
  Pieces p{base};
  const std::size_t rows = std::size_t(x.B) * x.H * x.L, all_tiles = std::size_t(x.B) * tiles(x);
  u = p.take<std::byte>(rows * size_of(compute_type(x.type)));
  some = p.take<int2>(all_tiles), every = p.take<int2>(all_tiles);
  stats = p.take<float2>(size_of(x.type) <= 4 ? rows : 0);
  const std::size_t groups = std::size_t(walkers) * x.B * x.H * groups_of_rows(x);
  if (groups > 0) z_q = p.take<float>(groups * (x.d / 8) * 128);
  bytes = p.bytes;
}

SplitOperands::SplitOperands(const AttentionCall& x, bool backward, std::byte* base)
    : terms(x.tf32 ? 1 : 2), width(with_split_size(x, [](auto size) { return int{size}; })) {
  Pieces p{base};
  const auto add = [&](Operand& to, const AttentionCall::Operand& from, int heads, int rows, int size,
                       bool keys) {
    to.from = from, to.heads = heads, to.rows = rows, to.size = size, to.keys = keys;
    const std::size_t all = std::size_t(x.B) * heads;
    to.to = p.take<__half>(all * rows * terms * width);
    to.greatest = p.take<int2>(all * to.chunks());
  };
  add(operand[0], x.q, x.H, x.L, x.d, false);
  add(operand[1], x.k, x.Hk, x.T, x.d, true);
  add(operand[2], x.v, x.Hk, x.T, x.dv, true);
  if (backward) count = 4, add(operand[3], x.z_o, x.H, x.L, x.dv, false);
  powers = p.take<Powers>(std::size_t(x.B) * x.Hk);
  bytes = p.bytes;
}

AttentionCall SplitOperands::in_place_of(AttentionCall x) const {
  AttentionCall::Operand* const to[4] = {&x.q, &x.k, &x.v, &x.z_o};
  for (int n = 0; n < count; ++n) {
    const Operand& a = operand[n];
    const std::int64_t row = terms * width, head = row * a.rows;
    *to[n] = {a.to, head * a.heads, head, row};
  }
  return x;
}

Workspace workspace_of(const AttentionCall& x, const Gpu& gpu, std::byte* base) {
  const bool one_pass = backward_path(x, gpu) == Path::one_pass;
  return {x, one_pass ? one_pass_walkers(x, gpu) : 0, base};
}

std::size_t forward_bytes(const AttentionCall& x, const Gpu& gpu) {
  return forward_path(x, gpu) == Path::f32 ? SplitOperands(x, false, nullptr).bytes : 0;
}

std::size_t backward_bytes(const AttentionCall& x, const Gpu& gpu) {
  const bool split = backward_path(x, gpu) == Path::f32;
  return workspace_of(x, gpu, nullptr).bytes + (split ? SplitOperands(x, true, nullptr).bytes : 0);
}

std::string in_words(Path path, const AttentionCall& x) {
  switch (path) {
    case Path::f32:
      return x.tf32 ? "tensor cores, f32 as halves of one term" : "tensor cores, f32 as halves of two terms";
    case Path::narrow:
      return "tensor cores";
    case Path::wide:
      return "tensor cores, wide heads";
    case Path::one_pass:
      return x.free_order ? "tensor cores, one pass in free order" : "tensor cores, one pass in order";
    default:
      return "plain multiply-adds";
  }
}

}  // namespace tg::cuda::attention
