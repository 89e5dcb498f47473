// Draws the use of caches over time.
#include "tools/bench/cache_history.h"

#include <algorithm>

#include "tools/bench/chart.h"

namespace tg::bench {

namespace {

using State = CacheHistory::State;
using plot::Color, plot::Image, plot::TextStyle;

constexpr Color free_color{22, 24, 30}, reserved_color{70, 74, 84}, shared_color{255, 255, 255},
    found_color{255, 214, 10};
constexpr float cache_title_size = 30, cache_panel_size = 24;
constexpr int cells_wide = 1500, most_high = 1100, least_high = 480, panel_gap = 60;
constexpr int margin_left = 130, margin_right = 40, margin_top = 210, margin_bottom = 90;

// Requests with consecutive numbers get clearly different hues.
Color color_of_request(std::int32_t request) {
  const double hue = 6 * std::fmod(request * 0.61803398875, 1.), value = request % 2 == 0 ? 0.92 : 0.68;
  const auto channel = [&](double offset) {
    const double k = std::fmod(offset + hue, 6.);
    const double v = value * (1 - 0.62 * std::clamp(std::min(k, 4 - k), 0., 1.));
    return static_cast<std::uint8_t>(std::lround(255 * v));
  };
  return {channel(5), channel(3), channel(1)};
}

Color color_of(const CacheHistory::Cell& cell) {
  constexpr Color colors[] = {free_color, reserved_color, {}, shared_color, found_color};  // per state
  return cell.state == State::used ? color_of_request(cell.request)
                                   : colors[static_cast<std::size_t>(cell.state)];
}

void draw_panel(Image& image, const CachePanel& panel, int x0, int wide, int high) {
  const CacheHistory& h = *panel.history;
  for (int x = 0; x < wide; ++x)
    for (int y = 0; y < high; ++y)
      image.set(x0 + x, margin_top + high - 1 - y, color_of(h.at(y * h.rows() / high, x * h.steps() / wide)));
  float y = margin_top - 14 - 1.3f * cache_panel_size;
  for (const std::string& line : panel.lines) {
    // A label that is longer than the panel is right-aligned.
    const float width = plot::stroke_text(line, cache_panel_size).width;
    draw_text(image, static_cast<float>(x0) + std::min(0.f, static_cast<float>(wide) - width), y, line,
              {cache_panel_size});
    y += 1.3f * cache_panel_size;
  }
  const auto steps = static_cast<double>(h.steps());
  draw_ticks_below(
      image, plot::make_plot_axis(0, steps, false, std::max(1, wide / 130)), steps,
      [&](double step) { return static_cast<float>(x0 + step * wide / steps); },
      static_cast<float>(margin_top + high), 12 + tick_size);
}

void draw_legend(Image& image, float y) {
  auto x = static_cast<float>(margin_left);
  const auto entry = [&](std::initializer_list<Color> colors, const std::string& text) {
    for (const Color color : colors) {
      image.fill(whole(x) - 1, whole(y) - 1, whole(x) + 23, whole(y) + 17, chart_soft);
      image.fill(whole(x), whole(y), whole(x) + 22, whole(y) + 16, color);
      x += 26;
    }
    draw_text(image, x + 6, y + 15, text, {tick_size});
    x += plot::stroke_text(text, tick_size).width + 42;
  };
  entry({color_of_request(0), color_of_request(1), color_of_request(2)}, "tokens of a sequence");
  entry({shared_color}, "shared by several sequences");
  entry({found_color}, "reused");
  entry({reserved_color}, "reserved, empty");
  entry({free_color}, "free");
}

}  // namespace

Image draw_caches(const std::string& title, const std::vector<CachePanel>& panels) {
  std::int64_t steps = 0, rows = 1, unit = 1;
  for (const CachePanel& p : panels)
    steps += p.history->steps(), rows = std::max(rows, p.history->rows()), unit = p.history->unit();
  // A page is an integer number of pixels high, or several pages share a pixel.
  const int high = static_cast<int>(
      rows >= most_high ? most_high : rows * std::max<std::int64_t>(1, (least_high + rows - 1) / rows));
  const auto count = static_cast<int>(panels.size());
  Image image(margin_left + cells_wide + panel_gap * (count - 1) + margin_right,
              margin_top + high + margin_bottom, chart_paper);
  image.text({margin_left, 56}, title, {.size = cache_title_size, .color = chart_ink, .weight = 1.35f});
  draw_legend(image, 96);
  int x = margin_left;
  for (const CachePanel& p : panels) {
    const int wide = std::max<int>(
        1, static_cast<int>(cells_wide * p.history->steps() / std::max<std::int64_t>(1, steps)));
    draw_panel(image, p, x, wide, high);
    x += wide + panel_gap;
  }
  const plot::PlotAxis axis =
      plot::make_plot_axis(0, static_cast<double>(rows * unit), false, std::max(2, high / 100));
  for (const plot::PlotTick& t : axis.ticks) {
    if (t.value > static_cast<double>(rows * unit) || t.label.empty()) continue;
    const auto y = static_cast<float>(margin_top + high - t.value * high / static_cast<double>(rows * unit));
    image.line({margin_left - 9, y}, {margin_left - 1, y}, 1.8f, chart_soft);
    draw_text(image, margin_left - 14, y + 0.35f * tick_size, t.label,
              {tick_size, chart_soft, TextStyle::Align::right});
  }
  draw_text(image, margin_left + cells_wide / 2.f, static_cast<float>(margin_top + high + margin_bottom - 16),
            "step", {cache_panel_size, chart_ink, TextStyle::Align::center});
  draw_upwards(image, 16 + 0.7f * cache_panel_size, static_cast<float>(margin_top + high / 2),
               "offset in the cache (tokens)", cache_panel_size);
  return image;
}

}  // namespace tg::bench
