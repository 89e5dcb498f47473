// Scaling as bars.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include <tilegrad/io/plots/png_plot.h>
#include "io/plots/plot_parts.h"
#include "tools/bench/scaling.h"

namespace tg::bench {

namespace {

using plot::Color, plot::Image, plot::TextStyle;

constexpr Color chart_paper{255, 255, 255}, chart_ink{34, 38, 46}, chart_soft{92, 98, 110},
    chart_grid{226, 229, 234};
constexpr int chart_left = 110, chart_right = 40, chart_top = 110, panel_high = 380, above_panel = 90,
              least_bar = 26, most_bar = 60, between_groups = 22;
constexpr float label_size = 18, share_size = 15;

// The rows of one kind, and where their bars stand.
struct Panel {
  const std::vector<ScalingRow>& rows;
  bool has_perfect;        // scaling, which is as many times one rank as there are ranks
  std::vector<int> ranks;  // that rows may have, a bar each

  Panel(const std::vector<ScalingRow>& shown, bool perfect, std::vector<int> of_runs)
      : rows(shown), has_perfect(perfect), ranks(std::move(of_runs)) {
    if (!has_perfect) std::erase(ranks, 1);  // it exchanges nothing
  }
  int group(int bar) const { return static_cast<int>(ranks.size()) * bar + between_groups; }
  // As many rows as an image can hold.
  int count() const {
    return std::min(static_cast<int>(rows.size()),
                    (Image::most - chart_left - chart_right) / group(least_bar));
  }
  int least_width() const { return count() * group(least_bar); }
  int bar_in(int width) const {
    const int each = width / std::max(1, count()) - between_groups;
    return std::clamp(each / std::max(1, static_cast<int>(ranks.size())), least_bar, most_bar);
  }
  int names() const {
    float longest = 0;
    for (const ScalingRow& r : rows)
      longest = std::max(longest, plot::stroke_text(r.label, label_size).width);
    return static_cast<int>(longest) + 40;
  }
  int height() const { return rows.empty() ? 0 : above_panel + panel_high + names(); }
  int place_of(int n) const { return static_cast<int>(std::ranges::find(ranks, n) - ranks.begin()); }
};

class ScalingDrawing {
 public:
  explicit ScalingDrawing(const Scaling& s)
      : s_(s),
        panels_{Panel(s.times, true, s.ranks), Panel(s.rates, false, s.ranks)},
        width_(std::max({750, panels_[0].least_width(), panels_[1].least_width()})),
        image_(chart_left + width_ + chart_right, chart_top + panels_[0].height() + panels_[1].height(),
               chart_paper) {}

  Image draw() {
    image_.text({chart_left, 44}, s_.machine + ", ranks together", {.size = 26, .color = chart_ink});
    int x = chart_left;
    for (const int n : s_.ranks) {
      image_.fill(x, 66, x + 18, 84, color_of(n));
      image_.text({static_cast<float>(x) + 26, 83}, std::to_string(n) + (n == 1 ? " rank" : " ranks"),
                  {.size = 20, .color = chart_ink});
      x += 130;
    }
    int top = chart_top;
    for (const Panel& p : panels_) {
      if (!p.rows.empty()) draw_panel(p, top + above_panel);
      top += p.height();
    }
    return std::move(image_);
  }

 private:
  Color color_of(int ranks) const {
    return plot::palette(static_cast<std::size_t>(std::ranges::find(s_.ranks, ranks) - s_.ranks.begin()));
  }

  void draw_panel(const Panel& p, int top) {
    double highest = p.has_perfect ? s_.ranks.back() : 0;
    for (const ScalingRow& r : p.rows)
      for (const auto& [ranks, value] : r.by_ranks)
        if (std::isfinite(value)) highest = std::max(highest, value);
    plot::PlotAxis axis = plot::make_plot_axis(0, highest > 0 ? highest : 1, false, 6);
    axis.lo = 0;  // bars start there
    const int bottom = top + panel_high, bar = p.bar_in(width_);
    const auto y_of = [&](double v) { return bottom - static_cast<int>(axis.place(v) * panel_high); };
    for (const plot::PlotTick& t : axis.ticks) {
      if (t.label.empty()) continue;
      image_.fill(chart_left, y_of(t.value), chart_left + width_, y_of(t.value) + 1, chart_grid);
      image_.text({chart_left - 10, static_cast<float>(y_of(t.value)) + 6}, t.label,
                  {.size = 20, .color = chart_soft, .align = TextStyle::Align::right});
    }
    image_.text({34, static_cast<float>(bottom) - panel_high / 2.f},
                p.has_perfect ? "times one rank alone" : "GB/s of each rank",
                {.size = 22, .color = chart_ink, .align = TextStyle::Align::center, .upwards = true});
    if (p.has_perfect)
      image_.text({chart_left, static_cast<float>(top) - 56},
                  "black lines: perfect scaling; numbers: the share of it",
                  {.size = 18, .color = chart_soft});
    for (int i = 0; i < p.count(); ++i) {
      const ScalingRow& row = p.rows[static_cast<std::size_t>(i)];
      const int x = chart_left + between_groups / 2 + p.group(bar) * i;
      for (const auto& [ranks, value] : row.by_ranks) {
        const int from = x + bar * p.place_of(ranks);
        draw_bar(ranks, value, from, from + bar - 3, y_of, p.has_perfect);
      }
      image_.text(
          {static_cast<float>(x) + static_cast<float>(p.group(bar) - between_groups) / 2 + 6,
           static_cast<float>(bottom) + 12},
          row.label,
          {.size = label_size, .color = chart_ink, .align = TextStyle::Align::right, .upwards = true});
    }
  }

  template <class F>
  void draw_bar(int ranks, double value, int from, int to, const F& y_of, bool has_perfect) {
    if (!std::isfinite(value)) return;
    image_.fill(from, y_of(value), to, y_of(0), color_of(ranks));
    if (!has_perfect) return;
    image_.fill(from - 2, y_of(ranks), to + 2, y_of(ranks) + 2, chart_ink);
    char share[16];
    std::snprintf(share, sizeof share, "%.2f", value / ranks);
    image_.text({static_cast<float>(from + to) / 2 + 0.35f * share_size,
                 static_cast<float>(std::min(y_of(value), y_of(ranks))) - 6},
                share, {.size = share_size, .color = chart_ink, .upwards = true});
  }

  const Scaling& s_;
  const Panel panels_[2];
  const int width_;  // between the left and the right edge
  Image image_;
};

}  // namespace

plot::Image draw_scaling(const Scaling& scaling) {
  return ScalingDrawing(scaling).draw();
}

}  // namespace tg::bench
