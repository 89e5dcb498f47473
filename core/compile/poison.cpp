#include "core/compile/poison.h"

namespace tg {

std::vector<Step> poisoned(std::vector<Step> steps, std::byte* arena, std::byte* results,
                           std::size_t status_bytes, const Buffers& buffers, const MemoryPlan& plan) {
  std::vector<Step> all;
  const auto fill = [&](std::byte* memory, std::size_t bytes) {
    const Shape shape{static_cast<std::int64_t>(bytes)};
    all.push_back({&full_op, FullAttrs{shape, 255, u8}, {}, {{u8, row_major(shape), memory}}, "poison", {}});
  };
  fill(arena, plan.report.arena);
  fill(results + status_bytes, plan.report.results - status_bytes);
  std::vector<std::vector<int>> dying(steps.size() + 1);  // buffers, by their last step
  for (int b : plan.arena_order) dying[buffers.list[b].last].push_back(b);
  for (std::size_t s = 0; s < steps.size(); ++s) {
    all.push_back(std::move(steps[s]));
    for (int b : dying[s]) fill(arena + plan.offset[b], buffers.list[b].bytes);
  }
  return all;
}

}  // namespace tg
