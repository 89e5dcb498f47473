// A program's memory plan as a picture.
#include "tools/inspect/memory_views.h"

#include "tools/model_parts.h"
#include "tools/train_report.h"

namespace tg {

FullestStep fullest_step(const Program& program) {
  std::vector<std::size_t> alive(program.steps().size() + 1);
  for (const ArenaBuffer& b : program.buffers())
    for (int s = b.first; s <= b.last; ++s) alive[static_cast<std::size_t>(s)] += b.bytes;
  const auto most = std::max_element(alive.begin(), alive.end());
  return {static_cast<int>(most - alive.begin()), *most};
}

plot::Plot plan_plot(const Program& program, const std::string& name) {
  constexpr double mib = 1 << 20;
  const MemoryReport m = program.memory();
  const auto steps = static_cast<double>(program.steps().size()), arena = static_cast<double>(m.arena);
  plot::Plot plot{.title = name + ": peak " + size_text(static_cast<double>(m.peak())) + ", of which " +
                           size_text(arena) + " arena",
                  .x_label = "step",
                  .y_label = "place in the arena (MiB)",
                  .width = 1800,
                  .height = 1000,
                  .legend_beside = true};
  const auto color_of = [](std::string_view part) {
    for (std::size_t i = 0; i < std::size(model_parts); ++i)
      if (model_parts[i].name == part) return plot::palette(i);
    return plot::Color{150, 154, 162};
  };
  for (const ArenaBuffer& b : program.buffers()) {
    const std::string& maker = program.steps()[static_cast<std::size_t>(b.first)].name;
    plot.boxes.push_back({static_cast<double>(b.first), static_cast<double>(b.offset) / mib,
                          std::min(b.last + 1.0, steps), static_cast<double>(b.offset + b.bytes) / mib,
                          color_of(part_of(maker))});
  }
  for (const ModelPart& part : model_parts)
    plot.series.push_back({.label = std::string(part.name), .color = color_of(part.name)});
  plot.series.push_back({.label = "loss, optimizer, other", .color = color_of("")});
  const FullestStep most = fullest_step(program);
  const double middle = most.step + 0.5;
  plot.series.push_back({.label = "arena: " + size_text(arena),
                         .x = {0, steps},
                         .y = {arena / mib, arena / mib},
                         .color = plot::Color{34, 38, 46}});
  plot.series.push_back({.label = "most alive: " + size_text(static_cast<double>(most.bytes)) + " at step " +
                                  std::to_string(most.step),
                         .x = {middle, middle},
                         .y = {0, arena / mib},
                         .color = plot::Color{200, 30, 40}});
  return plot;
}

}  // namespace tg
