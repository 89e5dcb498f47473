// matmul_in_units. On Hopper, one kernel sums along k in order if it can. Otherwise each unit is a separate
// GEMM. Units of the same size share one plan. They therefore use the same algorithm, whatever the length of
// the GEMM.
#include "ops/matmul_in_units.h"

#include <algorithm>
#include <array>

#include "backends/cuda/gemm/matmul.h"

namespace tg::cuda {

extern const Kernel matmul_kernel;

namespace {

static_assert(least_unit % ordered_gemm_step == 0);

// Returns `size` elements of the axis, starting at `first`.
Arg part_of(Arg a, int axis, std::int64_t first, std::int64_t size) {
  a.layout.shape[axis] = size;
  if (a.data) a.data += first * a.layout.strides[axis] * static_cast<std::int64_t>(size_of(a.dtype));
  return a;
}

class ProductInUnits final : public KernelPlan {
 public:
  explicit ProductInUnits(const Call& call) : attrs_(call.attrs->as<MatmulInUnitsAttrs>()) {
    sizes_ = units_of(call.in[0].layout.shape[attrs_.along_k ? 1 : 0], attrs_.unit);
    // The first unit may have no addend, and the last unit is larger.
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}, sizes_.size() - 1})
      if (i < sizes_.size() && !plan_of(i)) plan_of(i) = planned(call, i);
  }

  std::size_t workspace(const Call&) const override { return workspace_; }

  void launch(const Stream& s, const Call& call) const override {
    for (std::size_t i = 0; i < sizes_.size(); ++i)
      with_unit(call, i, [&](const Call& unit) { plan_of(i)->launch(s, unit); });
  }

  std::string choice(const Call& call) const override {
    std::string text;
    with_unit(call, 0, [&](const Call& unit) { text = plan_of(0)->choice(unit); });
    return sizes_.size() == 1 ? text : text + ", in " + std::to_string(sizes_.size()) + " units";
  }

 private:
  PlanPtr& plan_of(std::size_t i) { return plans_[i == 0 ? 0 : i + 1 == sizes_.size() ? 2 : 1]; }
  const PlanPtr& plan_of(std::size_t i) const { return const_cast<ProductInUnits*>(this)->plan_of(i); }

  PlanPtr planned(const Call& call, std::size_t i) {
    PlanPtr p;
    with_unit(call, i, [&](const Call& unit) {
      p = plan_transposed_gemm(unit);
      if (!p) p = matmul_kernel.plan(unit);
      workspace_ = std::max(workspace_, p->workspace(unit));
    });
    return p;
  }

  // Calls f with the matmul of unit i.
  template <class F>
  void with_unit(const Call& call, std::size_t i, F&& f) const {
    const Attrs none;
    const std::int64_t first = static_cast<std::int64_t>(i) * attrs_.unit, size = sizes_[i];
    const bool along_k = attrs_.along_k;
    std::array in{part_of(call.in[0], along_k ? 1 : 0, first, size), call.in[1], call.out[0]};
    std::array out{call.out[0]};
    if (along_k)
      in[1] = part_of(in[1], 0, first, size);
    else
      out[0] = part_of(out[0], 0, first, size);
    if (i == 0 && call.in.size() == 3) in[2] = call.in[2];
    const bool adds = along_k && (i > 0 || call.in.size() == 3);
    Call unit = call;
    unit.in = std::span(in).first(adds ? 3 : 2), unit.out = out;
    unit.attrs = &none, unit.written = nullptr;
    f(unit);
  }

  MatmulInUnitsAttrs attrs_;
  std::vector<std::int64_t> sizes_;
  std::array<PlanPtr, 3> plans_;  // plans of the first, the middle and the last units
  std::size_t workspace_ = 0;
};

}  // namespace

extern const Kernel matmul_in_units_kernel{[](const Call& call) -> PlanPtr {
  if (PlanPtr ordered = plan_ordered_gemm(call)) return ordered;
  return std::make_unique<ProductInUnits>(call);
}};

}  // namespace tg::cuda
