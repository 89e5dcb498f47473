// Fused elementwise kernels. Each op sequence and layout has a kernel, whose source is generated
// (fused_source.h).
#include <algorithm>
#include <utility>

#include <tilegrad/core/base/error.h>
#include <tilegrad/core/base/host_view.h>
#include "backends/cuda/jit/code.h"
#include "backends/cuda/jit/fused_source.h"
#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

namespace {

// Returns the number of vectors per thread. It keeps 64 bytes of each operand in flight. The number is
// limited by the available registers. It is also limited so that every multiprocessor has at least two
// blocks.
int times_of(std::int64_t vectors, std::size_t operands, const Gpu& gpu) {
  int times = operands <= 3 ? 4 : operands <= 8 ? 2 : 1;
  while (times > 1 && vectors < std::int64_t{2} * gpu.processors * fused_block * times) times /= 2;
  return times;
}

struct FusedPlan final : KernelPlan {
  cudaKernel_t kernel = nullptr;
  unsigned grid = 0;
  int tile = 0;  // tile side, or 0 without tiles
  bool is_full = false;

  explicit FusedPlan(const Call& c);
  void launch(const Stream& s, const Call& c) const override {
    if (!kernel) return;
    const int* fault = &s.faults.fault->step;
    std::vector<const void*> data;  // the arguments, in the order of the kernel's parameters
    for (const Arg& a : c.out) data.push_back(a.data);
    data.push_back(fault);
    for (const Arg& a : c.in) data.push_back(a.data);
    launch_compiled(s, kernel, grid, fused_block, std::move(data), "a fused elementwise kernel");
  }

  std::string choice(const Call&) const override {
    if (is_full) return {};
    if (!kernel) return "nothing to do";
    const std::string side = std::to_string(tile);
    return "compiled by NVRTC, " + (tile > 0 ? "tiles of " + side + "×" + side + ", " : "") +
           std::to_string(grid) + " blocks of " + std::to_string(fused_block) + " threads";
  }
};

FusedPlan::FusedPlan(const Call& c) {
  const auto& f = c.attrs->as<FusedAttrs>();
  const std::int64_t numel = c.out[0].layout.numel();
  if (numel == 0) return;
  const std::int64_t reach = std::max(numel, reach_of(c.in, c.out));  // upper bound of all indices
  const auto is_narrow = [&](std::int64_t beyond) { return reach + beyond < (1ll << 31); };
  const Space s(c.in, c.out);
  if (const auto tiles = tiles_of(s, c.in, c.out)) {
    kernel = compiled(tile_source(f, s, *tiles, c.in, c.out, is_narrow(0)), "chain", c.gpu);
    grid = static_cast<unsigned>(tiles->blocks);
    tile = tiles->side;
    return;
  }
  const int vector = vector_of(s, c.in, c.out);
  const std::int64_t vectors = numel / vector;
  const int times = times_of(vectors, c.in.size() + c.out.size(), c.gpu);
  const bool narrow = is_narrow(fused_block * 1024ll * c.gpu.processors * vector * times);
  kernel = compiled(fused_source(f, s, vector, times, c.in, c.out, narrow), "chain", c.gpu);
  const std::int64_t blocks = (vectors + fused_block * times - 1) / (fused_block * times);
  grid = static_cast<unsigned>(std::min<std::int64_t>(blocks, 64ll * c.gpu.processors));
}

// `full` is a fused elementwise kernel without inputs.
Call as_fused(const Call& c, Attrs& attrs) {
  const auto& f = c.attrs->as<FullAttrs>();
  const DType compute = compute_type(f.dtype);
  const double value = is_float(f.dtype) ? stored_number(f.dtype, f.value) : f.value;
  attrs = FusedAttrs{compute, {{&copy_op, f.dtype, 1, {{FusedAttrs::Source::constant, 0}}}}, {value}};
  return {c.in, c.out, &attrs, c.gpu, c.tf32, c.in_order, c.batch_invariant};
}

PlanPtr plan_full(const Call& c) {
  Attrs attrs;
  auto p = std::make_unique<FusedPlan>(as_fused(c, attrs));
  p->is_full = true;
  return p;
}

}  // namespace

extern const Kernel fused_kernel{&plan_as<FusedPlan>};
extern const Kernel full_kernel{&plan_full};

}  // namespace tg::cuda
