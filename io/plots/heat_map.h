// Draws small heat maps of equal size next to each other as PNG files: values from 0 to 1 as shades of blue.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tilegrad/io/plots/image.h>

namespace tg::plot {

// One map.
struct HeatMap {
  std::string title;          // drawn above the map
  std::vector<float> values;  // [rows, columns], each 0 to 1
};

// A picture of several maps of the same size.
struct HeatMaps {
  std::string title, x_label, y_label;  // of the picture; of all maps' columns and rows
  std::string scale;                    // meaning of the shades, such as a unit
  std::int64_t rows = 0, columns = 0;   // size of each map
  std::int64_t across = 1;              // maps per row of the picture
  std::vector<std::string> row_names = {}, column_names = {};  // drawn if cells are large enough for text
  std::vector<HeatMap> maps = {};                              // in reading order
};

// Returns the shade of a value. The shade is proportional to the square root of the value, so that small
// values can be distinguished. 0 is white.
Color heat_color(float value);

// Draws the maps. If a map has more cells than pixels, each pixel shows the largest of its cells. Throws
// ShapeError if sizes do not match, and Error for a picture larger than an Image can be.
Image draw_heat_maps(const HeatMaps& h);

}  // namespace tg::plot
