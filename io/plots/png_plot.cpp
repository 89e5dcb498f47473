// Draws a plot: frame, grid, series, labels, legend.
#include <tilegrad/io/plots/png_plot.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include <tilegrad/core/base/range.h>
#include "io/plots/plot_parts.h"

namespace tg::plot {
namespace {

constexpr Color paper{255, 255, 255}, ink{34, 38, 46}, soft{92, 98, 110}, grid{226, 229, 234},
    fine_grid{241, 243, 246};
constexpr float title_size = 32, label_size = 25, tick_size = 22;
constexpr float beside_gap = 24;  // between the axes and a legend next to them

struct Frame {
  float left, top, right, bottom;  // of the data area, in pixels
  PlotAxis x, y;

  Point at(double px, double py) const {
    return {left + float(x.place(px)) * (right - left), bottom - float(y.place(py)) * (bottom - top)};
  }
};

// Whether a value can be drawn. For values beyond 1e300, the length of an axis would overflow.
bool drawable(double v, bool log) {
  return std::abs(v) < 1e300 && (!log || v > 0);
}

// Returns the limits of the drawable values. If there are none, returns 1 to 10, so that an empty plot still
// has axes.
std::pair<double, double> range(const Plot& plot, bool of_x) {
  double lo = std::numeric_limits<double>::infinity(), hi = -lo;
  const auto take = [&](double x, double y) {
    if (!drawable(x, plot.log_x) || !drawable(y, plot.log_y)) return;
    lo = std::min(lo, of_x ? x : y), hi = std::max(hi, of_x ? x : y);
  };
  for (const Series& s : plot.series)
    for (std::size_t i = 0; i < s.x.size(); ++i) take(s.x[i], s.y[i]);
  for (const Box& b : plot.boxes) take(b.x0, b.y0), take(b.x1, b.y1);
  return lo <= hi ? std::pair(lo, hi) : std::pair(1.0, 10.0);
}

// Returns one line per run of consecutive drawable points.
std::vector<Polyline> unbroken_lines(const Series& s, const Plot& plot, const Frame& frame) {
  std::vector<Polyline> lines;
  bool open = false;
  for (std::size_t i = 0; i < s.x.size(); ++i) {
    if (!drawable(s.x[i], plot.log_x) || !drawable(s.y[i], plot.log_y)) {
      open = false;
      continue;
    }
    if (!open) lines.emplace_back();
    open = true;
    lines.back().push_back(frame.at(s.x[i], s.y[i]));
  }
  return lines;
}

void draw_grid(Image& image, const Frame& f) {
  for (const bool labelled : {false, true}) {  // draws labeled lines over minor lines
    for (const PlotTick& t : f.x.ticks) {
      if (t.label.empty() == labelled) continue;
      const float x = f.left + float(f.x.place(t.value)) * (f.right - f.left);
      image.line({x, f.top}, {x, f.bottom}, 1.2f, labelled ? grid : fine_grid);
    }
    for (const PlotTick& t : f.y.ticks) {
      if (t.label.empty() == labelled) continue;
      const float y = f.bottom - float(f.y.place(t.value)) * (f.bottom - f.top);
      image.line({f.left, y}, {f.right, y}, 1.2f, labelled ? grid : fine_grid);
    }
  }
}

// Draws boxes. A pale line separates neighbors if they are large enough.
void draw_boxes(Image& image, const Plot& plot, const Frame& f) {
  const auto whole = [](float v) { return static_cast<int>(std::lround(v)); };
  for (const Box& b : plot.boxes) {
    if (!drawable(b.x0, plot.log_x) || !drawable(b.x1, plot.log_x) || !drawable(b.y0, plot.log_y) ||
        !drawable(b.y1, plot.log_y))
      continue;
    const Point p = f.at(b.x0, b.y0), q = f.at(b.x1, b.y1);
    const int left = whole(std::min(p.x, q.x)), top = whole(std::min(p.y, q.y));
    const int right = std::max(whole(std::max(p.x, q.x)), left + 1);
    const int bottom = std::max(whole(std::max(p.y, q.y)), top + 1);
    const int gap_x = right - left > 3, gap_y = bottom - top > 3;
    image.fill(left, top, right - gap_x, bottom - gap_y, b.color);
  }
}

void draw_axes(Image& image, const Plot& plot, const Frame& f) {
  image.line({f.left, f.top}, {f.left, f.bottom}, 1.8f, soft);
  image.line({f.left, f.bottom}, {f.right, f.bottom}, 1.8f, soft);
  float free_from =
      -std::numeric_limits<float>::infinity();  // omits labels that would touch the previous label
  for (const PlotTick& t : f.x.ticks) {
    const float x = f.left + float(f.x.place(t.value)) * (f.right - f.left);
    image.line({x, f.bottom}, {x, f.bottom + (t.label.empty() ? 4.0f : 8.0f)}, 1.8f, soft);
    const float half = stroke_text(t.label, tick_size).width / 2;
    if (t.label.empty() || x - half < free_from) continue;
    image.text({x, f.bottom + 13 + tick_size}, t.label,
               {.size = tick_size, .color = soft, .align = TextStyle::Align::center});
    free_from = x + half + tick_size / 2;
  }
  float free_below = std::numeric_limits<float>::infinity();
  for (const PlotTick& t : f.y.ticks) {
    const float y = f.bottom - float(f.y.place(t.value)) * (f.bottom - f.top);
    image.line({f.left - (t.label.empty() ? 4.0f : 8.0f), y}, {f.left, y}, 1.8f, soft);
    if (t.label.empty() || y > free_below) continue;
    image.text({f.left - 13, y + 0.35f * tick_size}, t.label,
               {.size = tick_size, .color = soft, .align = TextStyle::Align::right});
    free_below = y - tick_size;
  }
  const float middle = (f.left + f.right) / 2, width = float(image.width());
  image.text({middle, float(image.height()) - 20}, plot.x_label,
             {.size = label_size, .color = ink, .align = TextStyle::Align::center});
  image.text({20 + 0.7f * label_size, (f.top + f.bottom) / 2}, plot.y_label,
             {.size = label_size, .color = ink, .align = TextStyle::Align::center, .upwards = true});
  // A title that is too long for the picture is drawn smaller, not truncated.
  const float natural = stroke_text(plot.title, title_size).width;
  const float shrink = std::min(1.0f, (width - 40) / natural), half_title = natural * shrink / 2;
  const float centre = std::max(20 + half_title, std::min(middle, width - 20 - half_title));
  image.text({centre, 30 + 0.7f * title_size}, plot.title,
             {.size = title_size * shrink, .color = ink, .align = TextStyle::Align::center, .weight = 1.35f});
}

Color color_of(const Plot& plot, std::size_t i) {
  return plot.series[i].color.value_or(palette(i));
}

void draw_series(Image& image, const Plot& plot, const Frame& f) {
  for (const bool faint : {true, false}) {  // faint series are below the others
    for (std::size_t i = 0; i < plot.series.size(); ++i) {
      const Series& s = plot.series[i];
      if (s.faint != faint) continue;
      const std::vector<Polyline> lines = unbroken_lines(s, plot, f);
      image.stroke(lines, faint ? 1.5f : 3.0f, color_of(plot, i), faint ? 0.35f : 1);
      if (!s.markers) continue;
      for (const Polyline& line : lines) {
        for (const Point p : line) image.disc(p, 5.5f, color_of(plot, i));
      }
    }
  }
}

// Returns the upper left corner of a legend of this size. Chooses the corner of the plot in which the legend
// hides the least. Pixels that are darker than the grid are counted.
Point legend_corner(const Image& image, const Frame& f, float width, float height) {
  constexpr float inset = 16, margin = 8;
  const auto pixel = [](float v, int most) { return std::clamp(static_cast<int>(v), 0, most); };
  Point best{};
  auto fewest = std::numeric_limits<std::int64_t>::max();
  for (const bool low : {false, true}) {
    for (const bool left : {false, true}) {
      const Point corner{left ? f.left + inset : f.right - inset - width,
                         low ? f.bottom - inset - height : f.top + inset};
      const int x1 = pixel(corner.x + width + margin, image.width()),
                y1 = pixel(corner.y + height + margin, image.height());
      std::int64_t hidden = 0;
      for (int y = pixel(corner.y - margin, y1); y < y1; ++y) {
        for (int x = pixel(corner.x - margin, x1); x < x1; ++x) {
          const Color c = image.at(x, y);
          hidden += std::min({c.r, c.g, c.b}) < grid.r;
        }
      }
      if (hidden < fewest) fewest = hidden, best = corner;
    }
  }
  return best;
}

constexpr float legend_row = 1.5f * tick_size, legend_pad = 14, legend_sample = 40, legend_gap = 12;

// Returns the width and height of the legend; both are 0 if no series has a label.
std::pair<float, float> legend_size(const Plot& plot) {
  float text = 0, rows = 0;
  for (const Series& s : plot.series) {
    if (s.label.empty()) continue;
    text = std::max(text, stroke_text(s.label, tick_size).width);
    ++rows;
  }
  if (rows == 0) return {0.0f, 0.0f};
  return {2 * legend_pad + legend_sample + legend_gap + text,
          2 * legend_pad + legend_row * rows - (legend_row - tick_size)};
}

void draw_legend(Image& image, const Plot& plot, const Frame& f) {
  const auto [width, height] = legend_size(plot);
  if (width == 0) return;
  const Point best =
      plot.legend_outside ? Point{f.right + beside_gap, f.top} : legend_corner(image, f, width, height);
  const auto whole = [](float v) { return static_cast<int>(std::lround(v)); };
  const int x0 = whole(best.x), y0 = whole(best.y), x1 = whole(best.x + width), y1 = whole(best.y + height);
  image.fill(x0 - 1, y0 - 1, x1 + 1, y1 + 1, grid);
  image.fill(x0, y0, x1, y1, paper);
  float y = best.y + legend_pad + tick_size / 2;
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    const Series& s = plot.series[i];
    if (s.label.empty()) continue;
    const Point from{best.x + legend_pad, y}, to{best.x + legend_pad + legend_sample, y};
    if (s.x.empty())
      image.fill(whole(from.x), whole(y - 7), whole(to.x), whole(y + 7), color_of(plot, i));
    else
      image.line(from, to, s.faint ? 1.5f : 3.0f, color_of(plot, i), s.faint ? 0.5f : 1);
    if (s.markers) image.disc({(from.x + to.x) / 2, y}, 5.5f, color_of(plot, i));
    image.text({to.x + legend_gap, y + 0.35f * tick_size}, s.label, {.size = tick_size, .color = ink});
    y += legend_row;
  }
}

}  // namespace

Color palette(std::size_t i) {
  constexpr Color colors[] = {{0, 98, 178},  {213, 94, 0},   {0, 140, 105}, {178, 62, 140},
                              {150, 112, 0}, {64, 160, 222}, {110, 70, 40}, {90, 90, 96}};
  return colors[i % std::size(colors)];
}

Image draw_plot(const Plot& plot) {
  for (const Series& s : plot.series) {
    if (s.x.size() != s.y.size()) {
      throw ShapeError("[plot] series \"" + s.label + "\" has " + std::to_string(s.x.size()) + " x and " +
                       std::to_string(s.y.size()) + " y, expected the same number of both");
    }
  }
  if (plot.width < 320 || plot.height < 240) {
    throw Error("[plot] got " + std::to_string(plot.width) + " x " + std::to_string(plot.height) +
                " pixels, expected at least 320 x 240");
  }
  Image image(plot.width, plot.height, paper);
  const auto [x_lo, x_hi] = range(plot, true);
  const auto [y_lo, y_hi] = range(plot, false);
  Frame f;
  f.x = make_plot_axis(x_lo, x_hi, plot.log_x, plot.width / 150);
  f.y = make_plot_axis(y_lo, y_hi, plot.log_y, plot.height / 100);
  const auto widest = [](const PlotAxis& axis) {
    float width = 0;
    for (const PlotTick& t : axis.ticks) width = std::max(width, stroke_text(t.label, tick_size).width);
    return width;
  };
  f.left = 20 + (plot.y_label.empty() ? 0 : 1.5f * label_size) + widest(f.y) + 18;
  // The last number may extend beyond the end of the axis.
  f.right = float(plot.width) - std::max(36.0f, widest(f.x) / 2 + 4);
  if (plot.legend_outside) f.right -= legend_size(plot).first + beside_gap;
  f.top = plot.title.empty() ? 30 : 30 + 0.7f * title_size + 26;
  f.bottom = float(plot.height) - (plot.x_label.empty() ? 30 : 30 + 1.2f * label_size) - 1.2f * tick_size;
  draw_grid(image, f);
  draw_boxes(image, plot, f);
  draw_series(image, plot, f);
  draw_axes(image, plot, f);
  draw_legend(image, plot, f);
  return image;
}

void save_plot(const std::string& path, const Plot& plot) {
  draw_plot(plot).save_png(path);
}

std::vector<double> smoothed(const std::vector<double>& y, std::int64_t half) {
  check_options("smoothed", {{"half", half, Range::whole_from(0)}});
  const auto n = static_cast<std::int64_t>(y.size());
  std::vector<double> out = y;
  for (std::int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(y[static_cast<std::size_t>(i)])) continue;
    const std::int64_t reach = std::min(half, i), last = i + std::min(reach, n - 1 - i);
    double sum = 0, count = 0;
    for (std::int64_t j = i - reach; j <= last; ++j) {
      const double value = y[static_cast<std::size_t>(j)];
      if (std::isfinite(value)) sum += value, ++count;
    }
    out[static_cast<std::size_t>(i)] = sum / count;
  }
  return out;
}

}  // namespace tg::plot
