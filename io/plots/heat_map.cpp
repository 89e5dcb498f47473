#include <tilegrad/io/plots/heat_map.h>

#include <algorithm>
#include <cmath>

#include <tilegrad/core/base/error.h>
#include "io/plots/plot_parts.h"

namespace tg::plot {
namespace {

constexpr Color heat_ink{34, 38, 46}, heat_soft{92, 98, 110}, heat_frame{176, 182, 192};
constexpr float heat_title = 30, heat_label = 22, heat_tick = 18;

// Sizes of the picture's parts in pixels.
struct HeatLayout {
  int cells_wide, cells_high;  // all cells of a map
  float name = 0;              // font size of row and column names; 0: they do not fit
  bool names_upright = true;   // names below a map are upright, if adjacent names do not touch
  int left = 0, below = 0;     // space for names
  int panel_wide, panel_high;  // size of a map with its title, names and gap
  int width, height;           // the whole picture
  static constexpr int top = 90, bottom = 120, side = 70, head = 36, gap = 26;

  explicit HeatLayout(const HeatMaps& h) {
    const std::int64_t most = std::max(h.rows, h.columns);
    // Cells become larger to make space for names, up to these limits.
    constexpr std::int64_t named_cell = 14, widest_named = 3600;
    std::int64_t natural = std::clamp<std::int64_t>(1800 / h.across, 150, 760);
    if (!h.column_names.empty() && h.across * (most * named_cell + 80) <= widest_named)
      natural = std::max(natural, most * named_cell);
    const std::int64_t cell = std::min<std::int64_t>(natural / most, 40);  // 0: several cells per pixel
    cells_wide = static_cast<int>(cell > 0 ? cell * h.columns : std::min(natural, h.columns));
    cells_high = static_cast<int>(cell > 0 ? cell * h.rows : std::min(natural, h.rows));
    if (cell >= 11) name = std::min(20.0f, float(cell) * 1.1f);
    const auto widest = [&](const std::vector<std::string>& names) {
      float w = 0;
      for (const std::string& s : names) w = std::max(w, stroke_text(s, name).width);
      return w;
    };
    if (name > 0 && !h.row_names.empty()) left = static_cast<int>(widest(h.row_names)) + 10;
    if (name > 0 && !h.column_names.empty()) {
      for (std::size_t i = 0; i + 1 < h.column_names.size(); ++i)
        names_upright &=
            stroke_text(h.column_names[i], name).width + stroke_text(h.column_names[i + 1], name).width <
            1.8f * float(cell);
      below = static_cast<int>(names_upright ? 1.3f * name : widest(h.column_names)) + 10;
    }
    float title = 0;
    for (const HeatMap& m : h.maps) title = std::max(title, stroke_text(m.title, heat_label).width);
    panel_wide = std::max(left + cells_wide, static_cast<int>(title)) + gap;
    panel_high = head + cells_high + below + gap;
    const auto across = static_cast<int>(h.across);
    const auto down = (static_cast<int>(h.maps.size()) + across - 1) / across;
    width = std::max(side + across * panel_wide + gap, 900), height = top + down * panel_high + bottom;
  }
};

void draw_cells(Image& image, const HeatMaps& h, const HeatMap& map, const HeatLayout& l, int x0, int y0) {
  // Returns the range of cells at pixel p of `pixels`: the first cell, and the cell after the last one.
  const auto cells = [](std::int64_t p, std::int64_t pixels, std::int64_t count) {
    const std::int64_t first = p * count / pixels;
    return std::pair(first, std::max(first + 1, (p + 1) * count / pixels));
  };
  for (int y = 0; y < l.cells_high; ++y) {
    const auto [row, row_end] = cells(y, l.cells_high, h.rows);
    for (int x = 0; x < l.cells_wide; ++x) {
      const auto [column, column_end] = cells(x, l.cells_wide, h.columns);
      float largest = 0;
      for (std::int64_t r = row; r < row_end; ++r)
        for (std::int64_t c = column; c < column_end; ++c)
          largest = std::max(largest, map.values[static_cast<std::size_t>(r * h.columns + c)]);
      image.set(x0 + x, y0 + y, heat_color(largest));
    }
  }
  const auto left = float(x0), top = float(y0);
  const float right = left + float(l.cells_wide), bottom = top + float(l.cells_high);
  const Polyline frame{{left, top}, {right, top}, {right, bottom}, {left, bottom}, {left, top}};
  image.stroke(std::span(&frame, 1), 1.2f, heat_frame);
}

void draw_names(Image& image, const HeatMaps& h, const HeatLayout& l, int x0, int y0) {
  if (l.name == 0) return;
  const float high = float(l.cells_high) / float(h.rows);
  const float wide = float(l.cells_wide) / float(h.columns);
  for (std::size_t i = 0; i < h.row_names.size(); ++i)
    image.text({float(x0 - 6), float(y0) + (float(i) + 0.5f) * high + 0.35f * l.name}, h.row_names[i],
               {.size = l.name, .color = heat_soft, .align = TextStyle::Align::right});
  for (std::size_t i = 0; i < h.column_names.size(); ++i) {
    const float x = float(x0) + (float(i) + 0.5f) * wide;
    const auto y = float(y0 + l.cells_high + 6);
    if (l.names_upright)
      image.text({x, y + l.name}, h.column_names[i],
                 {.size = l.name, .color = heat_soft, .align = TextStyle::Align::center});
    else
      image.text({x + 0.35f * l.name, y}, h.column_names[i],
                 {.size = l.name, .color = heat_soft, .align = TextStyle::Align::right, .upwards = true});
  }
}

// Draws a strip of all shades and labels the values at its ends.
void draw_scale(Image& image, const HeatMaps& h, const HeatLayout& l) {
  const int x0 = l.width - 420, x1 = l.width - 40, y0 = l.height - 66, y1 = y0 + 18;
  for (int x = x0; x < x1; ++x) {
    const float root = float(x - x0) / float(x1 - x0 - 1);
    image.fill(x, y0, x + 1, y1, heat_color(root * root));
  }
  for (const auto& [value, label] :
       {std::pair(0.0f, "0"), {0.01f, "0.01"}, {0.1f, "0.1"}, {0.25f, "0.25"}, {0.5f, "0.5"}, {1.0f, "1"}}) {
    const float x = float(x0) + std::sqrt(value) * float(x1 - x0);
    image.line({x, float(y1)}, {x, float(y1 + 6)}, 1.4f, heat_soft);
    image.text({x, float(y1) + 8 + heat_tick}, label,
               {.size = heat_tick, .color = heat_soft, .align = TextStyle::Align::center});
  }
  image.text({float(x0 - 16), float(y1)}, h.scale,
             {.size = heat_tick, .color = heat_ink, .align = TextStyle::Align::right});
}

}  // namespace

Color heat_color(float value) {
  constexpr Color stops[] = {{255, 255, 255}, {190, 216, 238}, {92, 158, 208}, {22, 88, 160}, {6, 26, 72}};
  constexpr int pieces = static_cast<int>(std::size(stops)) - 1;
  const float at = std::sqrt(value > 0 ? std::min(value, 1.0f) : 0.0f) * pieces;  // NaN is 0
  const int i = std::min(static_cast<int>(at), pieces - 1);
  const float part = at - float(i);
  const auto mix = [&](std::uint8_t a, std::uint8_t b) {
    return static_cast<std::uint8_t>(std::lround(float(a) + (float(b) - float(a)) * part));
  };
  return {mix(stops[i].r, stops[i + 1].r), mix(stops[i].g, stops[i + 1].g), mix(stops[i].b, stops[i + 1].b)};
}

Image draw_heat_maps(const HeatMaps& h) {
  constexpr std::int64_t most = Image::most;
  if (std::min({h.rows, h.columns, h.across}) < 1 || std::max({h.rows, h.columns, h.across}) > most)
    throw ShapeError("[heat map] got maps of " + std::to_string(h.rows) + " x " + std::to_string(h.columns) +
                     " cells, " + std::to_string(h.across) + " across, expected 1 to " +
                     std::to_string(most) + " of each");
  for (const HeatMap& m : h.maps)
    if (std::ssize(m.values) != h.rows * h.columns)
      throw ShapeError("[heat map] \"" + m.title + "\" has " + std::to_string(m.values.size()) +
                       " values, expected " + std::to_string(h.rows) + " x " + std::to_string(h.columns));
  const HeatLayout l(h);
  Image image(l.width, l.height, {255, 255, 255});
  for (std::size_t i = 0; i < h.maps.size(); ++i) {
    const int column = static_cast<int>(i) % static_cast<int>(h.across),
              row = static_cast<int>(i) / static_cast<int>(h.across);
    const int x0 = l.side + column * l.panel_wide + l.left, y0 = l.top + row * l.panel_high + l.head;
    draw_cells(image, h, h.maps[i], l, x0, y0);
    draw_names(image, h, l, x0, y0);
    // Centers the title above the cells, or as far as the panel of the map allows that.
    const float half = stroke_text(h.maps[i].title, heat_label).width / 2;
    const auto begin = float(l.side + column * l.panel_wide), end = begin + float(l.panel_wide - l.gap);
    const float middle = float(x0) + float(l.cells_wide) / 2;
    image.text({std::max(begin + half, std::min(middle, end - half)), float(y0 - 9)}, h.maps[i].title,
               {.size = heat_label, .color = heat_ink, .align = TextStyle::Align::center});
  }
  const auto width = float(l.width), height = float(l.height);
  const float natural = stroke_text(h.title, heat_title).width;
  image.text({width / 2, 30 + 0.7f * heat_title}, h.title,
             {.size = heat_title * std::min(1.0f, (width - 40) / natural),
              .color = heat_ink,
              .align = TextStyle::Align::center,
              .weight = 1.35f});
  image.text({float(l.side), height - 48}, h.x_label, {.size = heat_label, .color = heat_ink});
  image.text({20 + 0.7f * heat_label, (height - l.bottom + l.top) / 2}, h.y_label,
             {.size = heat_label, .color = heat_ink, .align = TextStyle::Align::center, .upwards = true});
  draw_scale(image, h, l);
  return image;
}

}  // namespace tg::plot
