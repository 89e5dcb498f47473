// GEMMs that are summed along k in order (matmul.h).
#include "backends/cuda/gemm/matmul.h"

#include <algorithm>

#include "backends/cuda/gemm/ordered_gemm_sm90.cuh"
#include "backends/cuda/kernels/elements.cuh"
#include "backends/cuda/runtime/tensor_map.h"

namespace tg::cuda {

namespace {

static_assert(ordered::depth == ordered_gemm_step);

// The stride between rows or columns of a matrix. The matrix must consist of aligned 16-byte pieces,
// otherwise the result is 0.
i64 pitch_of(const Arg& a, int along) {
  const Layout& l = a.layout;
  const i64 pitch = l.strides[1 - along];
  return l.strides[along] == 1 && pitch > 0 && pitch % 8 == 0 &&
                 reinterpret_cast<std::uintptr_t>(a.data) % 16 == 0
             ? pitch
             : 0;
}

bool has_pairs(const Arg& a) {  // along rows
  const Layout& l = a.layout;
  return l.rank() == 2 && l.strides[1] == 1 && l.strides[0] % 2 == 0 &&
         reinterpret_cast<std::uintptr_t>(a.data) % 8 == 0;
}

i64 tiles(i64 n, i64 of) {
  return (n + of - 1) / of;
}

// Returns the tile width that needs the least time if all pairs of blocks are busy. Results are bitwise
// identical with either width.
int columns_for(i64 m, i64 n, const Gpu& gpu) {
  const auto time = [&](int columns) {
    const i64 all = tiles(m, ordered::pair_rows) * tiles(n, columns);
    return tiles(all, std::max(gpu.processors / 2, 1)) * columns;
  };
  return time(192) < time(256) ? 192 : 256;
}

template <class Tiles>
void launch(const Stream& s, const Call& call) {
  const Arg &a = call.in[0], &b = call.in[1], &c = call.out[0];
  const i64 m = c.layout.shape[0], n = c.layout.shape[1], k = a.layout.shape[1];
  const auto map = [&](const Arg& x, bool across, i64 of_result, int box) {
    const i64 pitch = std::max(x.layout.strides[0], x.layout.strides[1]);
    return tensor_map(x.dtype, x.data, {across ? of_result : k, across ? k : of_result, 1, 1}, {pitch, 8, 8},
                      {64, box, 1, 1});
  };
  const Arg* const d = call.in.size() == 3 ? &call.in[2] : nullptr;
  const ordered::Plan plan{map(a, Tiles::a_across, m, Tiles::a_box),
                           map(b, Tiles::b_across, n, Tiles::b_box),
                           static_cast<int>(m),
                           static_cast<int>(n),
                           static_cast<int>(tiles(k, ordered::depth)),
                           static_cast<int>(tiles(m, ordered::pair_rows)),
                           static_cast<int>(tiles(n, Tiles::columns)),
                           d ? reinterpret_cast<const float*>(d->data) : nullptr,
                           c.data,
                           d ? d->layout.strides[0] : 0,
                           c.layout.strides[0],
                           c.dtype == DType::f32};
  launch_early(s,
               pairs_of_blocks(s.gpu, plan.row_pairs * plan.column_tiles, tile::pair_threads,
                               ordered::Shared<Tiles>::bytes),
               ordered::multiply<Tiles>, plan);
}

template <class S, int columns>
void launch_in_place(const Stream& s, const Call& call) {
  using ordered::Tiles;
  const bool a_across = pitch_of(call.in[0], 1) == 0, b_across = pitch_of(call.in[1], 1) > 0;
  if (a_across) return launch<Tiles<S, columns, true, true>>(s, call);
  b_across ? launch<Tiles<S, columns, false, true>>(s, call)
           : launch<Tiles<S, columns, false, false>>(s, call);
}

}  // namespace

bool is_for_ordered_gemm(const Call& p) {
  const Arg &a = p.in[0], &b = p.in[1], &c = p.out[0];
  constexpr i64 most = i64{1} << 30;
  if (!p.gpu.hopper || (a.dtype != DType::bf16 && a.dtype != DType::f16)) return false;
  if (a.layout.rank() != 2 || b.layout.rank() != 2 || !has_pairs(c)) return false;
  const bool has_d = p.in.size() == 3;
  if (c.dtype != DType::f32 && (has_d || c.dtype != a.dtype)) return false;
  if (has_d && (p.in[2].dtype != DType::f32 || p.in[2].layout.shape != c.layout.shape || !has_pairs(p.in[2])))
    return false;
  const i64 m = c.layout.shape[0], n = c.layout.shape[1], k = a.layout.shape[1];
  if (m == 0 || n == 0 || k == 0 || n % 2 != 0 || m >= most || n >= most || k >= most) return false;
  const bool a_along = pitch_of(a, 1) > 0, b_across = pitch_of(b, 1) > 0;
  if (a_along) return b_across || pitch_of(b, 0) > 0;
  return pitch_of(a, 0) > 0 && b_across;
}

namespace {

struct OrderedGemmPlan final : KernelPlan {
  void launch(const Stream& s, const Call& call) const override;
  std::string choice(const Call& call) const override;
};

void OrderedGemmPlan::launch(const Stream& s, const Call& call) const {
  const Layout& l = call.out[0].layout;
  const bool narrow = columns_for(l.shape[0], l.shape[1], s.gpu) == 192;
  with_half(call.in[0].dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    narrow ? launch_in_place<S, 192>(s, call) : launch_in_place<S, 256>(s, call);
  });
}

std::string OrderedGemmPlan::choice(const Call& call) const {
  const Layout& l = call.out[0].layout;
  return "summed along k in order, by wgmma, tiles of " + std::to_string(ordered::rows) + " × " +
         std::to_string(columns_for(l.shape[0], l.shape[1], call.gpu));
}

}  // namespace

PlanPtr plan_ordered_gemm(const Call& call) {
  return is_for_ordered_gemm(call) ? std::make_unique<OrderedGemmPlan>() : nullptr;
}

}  // namespace tg::cuda
