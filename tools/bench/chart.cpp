#include "tools/bench/chart.h"

#include <algorithm>

#include "tools/bench/report.h"

namespace tg::bench {

using plot::Image, plot::TextStyle;

namespace {

constexpr float name_size = 18, share_size = 15;

}  // namespace

void draw_text(Image& image, float x, float y, const std::string& text, const Label& label) {
  image.text({x, y}, text, {.size = label.size, .color = label.color, .align = label.align});
}

void draw_upwards(Image& image, float x, float y, const std::string& text, float size) {
  image.text({x, y}, text,
             {.size = size, .color = chart_ink, .align = TextStyle::Align::center, .upwards = true});
}

plot::PlotAxis axis_from_zero(double highest, int ticks) {
  plot::PlotAxis axis = plot::make_plot_axis(0, highest > 0 ? highest : 1, false, ticks);
  axis.lo = 0;
  return axis;
}

void BarPanel::draw(Image& image, int width, int bottom) const {
  const plot::PlotAxis axis = axis_from_zero(highest, 6);
  const auto y_of = [&](double v) { return bottom - static_cast<int>(axis.place(v) * high); };
  draw_grid(image, axis, left, left + width, y_of, 10, 6);
  draw_upwards(image, 34, static_cast<float>(bottom) - high / 2.f, unit, 22);
  draw_text(image, left, static_cast<float>(bottom - high) - 56, remark, {18, chart_soft});
  int x = left + margin;
  for (const BarGroup& g : groups) {
    for (const Bar& b : g.bars) {
      if (!std::isfinite(b.value)) continue;
      const int from = x + bar * static_cast<int>(b.index), to = from + bar - space;
      image.fill(from, y_of(b.value), to, bottom, b.color);
      if (std::isnan(b.perfect)) continue;
      const int line = y_of(b.perfect);
      image.fill(from - 2, line, to + 2, line + 2, chart_ink);
      image.text({static_cast<float>(from + to) / 2 + 0.35f * share_size,
                  static_cast<float>(std::min(y_of(b.value), line)) - 6},
                 number(b.value / b.perfect, "%.2f"),
                 {.size = share_size, .color = chart_ink, .upwards = true});
    }
    image.text(
        {static_cast<float>(x) + static_cast<float>(bars * bar) / 2 + 6, static_cast<float>(bottom) + 12},
        g.name, {.size = name_size, .color = chart_ink, .align = TextStyle::Align::right, .upwards = true});
    x += group();
  }
}

int height_of_names(const std::vector<BarGroup>& groups) {
  float longest = 0;
  for (const BarGroup& g : groups) longest = std::max(longest, plot::stroke_text(g.name, name_size).width);
  return static_cast<int>(longest) + 40;
}

void draw_head(Image& image, int y, const std::string& title, const std::vector<LegendEntry>& legend) {
  draw_text(image, BarPanel::left, static_cast<float>(y), title, {26});
  int x = BarPanel::left;
  for (const LegendEntry& e : legend) {
    image.fill(x, y + 22, x + 18, y + 40, e.color);
    draw_text(image, static_cast<float>(x) + 26, static_cast<float>(y + 39), e.name, {20});
    x += e.width;
  }
}

}  // namespace tg::bench
