// Small heat maps of one size side by side, as PNG files: shares from 0 to 1 as shades of blue.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tilegrad/io/plots/image.h>

namespace tg::plot {

struct HeatMap {
  std::string title;
  std::vector<float> values;  // [rows, columns], 0 to 1
};

struct HeatMaps {
  std::string title, x_label, y_label;                         // labels of all maps' columns and rows
  std::string scale;                                           // what a shade means
  std::int64_t rows = 0, columns = 0;                          // of each map
  std::int64_t across = 1;                                     // maps side by side
  std::vector<std::string> row_names = {}, column_names = {};  // drawn if cells are large enough to read them
  std::vector<HeatMap> maps = {};
};

// The shade of a value, by its square root, so that small shares can be distinguished; white is 0.
Color heat_color(float value);

// If a map has more cells than pixels, a pixel shows the largest of its cells. ShapeError if sizes do not
// match; Error for a picture larger than an Image can be.
Image draw_heat_maps(const HeatMaps& h);

}  // namespace tg::plot
