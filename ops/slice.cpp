// slice: part of an axis, as a view.
#include "ops/common.h"

namespace tg {

namespace {
struct SliceAttrs {
  std::int64_t axis, start, stop, step;
  void fields(auto&& field) const {
    field("axis", axis), field("start", start), field("stop", stop), field("step", step);
  }
};
}  // namespace

const Op slice_op{
    .name = "slice",
    .infer =
        [](std::span<const Operand> in, const Attrs& a) {
          const auto& s = a.as<SliceAttrs>();
          return std::vector<OutSpec>{{in[0].dtype, slice(in[0].layout, s.axis, s.start, s.stop, s.step), 0}};
        },
    .not_differentiable = "slice_assign is not there yet",
    .view = true};

Tensor slice(In x, std::int64_t axis, std::int64_t start, std::int64_t stop, std::int64_t step) {
  return record(slice_op, {x}, SliceAttrs{axis, start, stop, step});
}

}  // namespace tg
