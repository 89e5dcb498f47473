// Tests heat maps: shades, sizes, and the positions of cells.
#include <tilegrad/io/plots/heat_map.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include <tilegrad/core/base/error.h>

namespace tg {
namespace {

using Shade = std::tuple<int, int, int>;

// Counts the pixels of each color.
std::map<Shade, int> colors_of(const plot::Image& image) {
  std::map<Shade, int> found;
  for (int y = 0; y < image.height(); ++y)
    for (int x = 0; x < image.width(); ++x) {
      const plot::Color c = image.at(x, y);
      ++found[{c.r, c.g, c.b}];
    }
  return found;
}
Shade shade(float v) {
  const plot::Color c = plot::heat_color(v);
  return {c.r, c.g, c.b};
}

plot::HeatMaps two_by_three(std::vector<float> values) {
  return {.title = "title",
          .x_label = "x",
          .y_label = "y",
          .scale = "share",
          .rows = 2,
          .columns = 3,
          .maps = {{"map", std::move(values)}}};
}

TEST(HeatMap, ShadesDarkenFromWhiteAndSaturateAtTheirEnds) {
  EXPECT_EQ(plot::heat_color(0), (plot::Color{255, 255, 255}));
  int before = 766;
  for (int i = 0; i <= 100; ++i) {
    const plot::Color c = plot::heat_color(static_cast<float>(i) / 100);
    EXPECT_LT(c.r + c.g + c.b, before);
    before = c.r + c.g + c.b;
  }
  EXPECT_EQ(plot::heat_color(-1), plot::heat_color(0));
  EXPECT_EQ(plot::heat_color(2), plot::heat_color(1));
  EXPECT_EQ(plot::heat_color(std::nanf("")), plot::heat_color(0));
}

TEST(HeatMap, CellsAreSquaresOfOneSizeInTheirShades) {
  const plot::HeatMaps h = two_by_three({0.3f, 0.3f, 0.3f, 0.7f, 0.7f, 0.05f});
  const plot::Image bare = plot::draw_heat_maps(two_by_three({0, 0, 0, 0, 0, 0})),
                    image = plot::draw_heat_maps(h);
  auto now = colors_of(image), before = colors_of(bare);  // both counts include the strip of shades
  const int cell = now[shade(0.05f)] - before[shade(0.05f)];
  EXPECT_GT(cell, 1000);
  EXPECT_NEAR(now[shade(0.3f)] - before[shade(0.3f)], 3 * cell, cell / 10.0);
  EXPECT_NEAR(now[shade(0.7f)] - before[shade(0.7f)], 2 * cell, cell / 10.0);
}

TEST(HeatMap, NamesAreDrawnOnlyIfTheyFit) {
  plot::HeatMaps h = two_by_three({0, 0, 0, 0, 0, 0});
  const int bare = plot::draw_heat_maps(h).width();
  h.row_names = {"a long name", "b"}, h.column_names = {"c", "d", "e"};
  EXPECT_GE(plot::draw_heat_maps(h).width(), bare);
  const plot::Image named = plot::draw_heat_maps(h);
  h.row_names = h.column_names = {};
  EXPECT_GT(named.height(), plot::draw_heat_maps(h).height());
  plot::HeatMaps large{.rows = 400,
                       .columns = 400,
                       .row_names = std::vector<std::string>(400, "name"),
                       .column_names = std::vector<std::string>(400, "name"),
                       .maps = {{"", std::vector<float>(160000)}}};
  const plot::Image with = plot::draw_heat_maps(large);
  large.row_names = large.column_names = {};
  EXPECT_TRUE(with.png() == plot::draw_heat_maps(large).png());
}

// Finds the pixels above the strip of shades for which is() returns true. Returns their bounding box (left,
// top, right, bottom).
template <class F>
std::array<int, 4> extent_of(const plot::Image& image, F is) {
  std::array<int, 4> e{image.width(), image.height(), -1, -1};
  for (int y = 90; y < image.height() - 120; ++y)
    for (int x = 0; x < image.width(); ++x)
      if (is(x, y, image.at(x, y)))
        e = {std::min(e[0], x), std::min(e[1], y), std::max(e[2], x), std::max(e[3], y)};
  return e;
}

// A column's name is vertical and below the column. Names of columns and rows end at the same distance from
// the cells.
TEST(HeatMap, NamesOfRowsAndColumnsEndAtTheSameDistanceFromTheCells) {
  plot::HeatMaps h = two_by_three(std::vector<float>(6, 0.7f));
  h.y_label = "";
  h.row_names = {"name", ""}, h.column_names = {"name", "", "too wide for a column"};
  const plot::Image image = plot::draw_heat_maps(h);
  const auto is_text = [](const plot::Color& c) { return c.r < 150 && c.b < 150; };
  const auto cells =
      extent_of(image, [](int, int, const plot::Color& c) { return c == plot::heat_color(0.7f); });
  const int column = (cells[2] + 1 - cells[0]) / 3;
  const auto row_name =
      extent_of(image, [&](int x, int, const plot::Color& c) { return x < cells[0] && is_text(c); });
  const auto column_name = extent_of(image, [&](int x, int y, const plot::Color& c) {
    return y > cells[3] && x < cells[0] + column && is_text(c);
  });
  EXPECT_EQ(column_name[1] - cells[3], cells[0] - row_name[2]);
  // Each name is centered on its row or column.
  const double row_middle = cells[1] + (cells[3] + 1 - cells[1]) / 4.0,
               column_middle = cells[0] + column / 2.0;
  EXPECT_NEAR((row_name[1] + row_name[3] + 1) / 2.0, row_middle, 3);
  EXPECT_NEAR((column_name[0] + column_name[2] + 1) / 2.0, column_middle, 3);
}

// A row of the picture contains `across` maps. The next maps are below. All maps have the same size.
TEST(HeatMap, RowsHaveTheRequestedNumberOfMaps) {
  const std::vector<float> shades{0.2f, 0.35f, 0.5f, 0.65f, 0.8f};
  const auto drawn = [&](std::size_t maps) {
    plot::HeatMaps h = two_by_three({});
    h.across = 2, h.maps.clear();
    for (std::size_t i = 0; i < maps; ++i) h.maps.push_back({"", std::vector<float>(6, shades[i])});
    return plot::draw_heat_maps(h);
  };
  const plot::Image image = drawn(5);
  std::vector<std::array<int, 4>> at;
  for (const float v : shades)
    at.push_back(extent_of(image, [&](int, int, const plot::Color& c) { return c == plot::heat_color(v); }));
  const int right = at[1][0] - at[0][0], down = at[2][1] - at[0][1];
  EXPECT_GE(at[1][0] - at[0][2], 20);
  EXPECT_GE(at[2][1] - at[0][3], 40);  // space for the title
  for (std::size_t i = 0; i < at.size(); ++i) {
    const int x = right * static_cast<int>(i % 2), y = down * static_cast<int>(i / 2);
    EXPECT_EQ(at[i], (std::array{at[0][0] + x, at[0][1] + y, at[0][2] + x, at[0][3] + y})) << i;
  }
  for (const std::size_t maps : {1, 2, 3, 4})
    EXPECT_EQ(drawn(maps).height(), image.height() - down * static_cast<int>(3 - (maps + 1) / 2)) << maps;
}

TEST(HeatMap, LongTitlesAreDrawnSmaller) {
  plot::HeatMaps h = two_by_three(std::vector<float>(6, 0.0f));
  h.title = std::string(300, 'w');
  const plot::Image image = plot::draw_heat_maps(h);
  for (int y = 0; y < 80; ++y)
    for (const int x : {15, image.width() - 16}) EXPECT_EQ(image.at(x, y), (plot::Color{255, 255, 255}));
}

// Each number has a tick below the strip of shades, at the shade of that number.
TEST(HeatMap, NumbersOfTheScaleAreAlignedWithTheirShades) {
  const plot::Image image = plot::draw_heat_maps(two_by_three(std::vector<float>(6, 0.0f)));
  const int left = image.width() - 420, right = image.width() - 40, top = image.height() - 66;
  std::vector<int> ticks;  // first pixels of the ticks
  const auto is_tick = [&](int x) { return image.at(x, top + 22).g < 200; };
  for (int x = left - 3; x < right + 3; ++x)
    if (is_tick(x) && !is_tick(x - 1)) ticks.push_back(x);
  const std::vector<float> values{0, 0.01f, 0.1f, 0.25f, 0.5f, 1};
  ASSERT_EQ(ticks.size(), values.size());
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    const int x = std::clamp(ticks[i], left, right - 1);
    const plot::Color c = image.at(x, top + 9), expected = plot::heat_color(values[i]);
    // The strip shows 380 square roots. So adjacent pixels differ by at most 4·96 / 380 < 2 of 255 shades.
    for (const auto& [got, shade] : {std::pair(c.r, expected.r), {c.g, expected.g}, {c.b, expected.b}})
      EXPECT_NEAR(got, shade, 3) << values[i];
  }
}

// Only one of 5000 × 5000 cells is not white. A pixel shows the largest of its cells.
TEST(HeatMap, ASingleCellIsVisibleAmongMoreCellsThanPixels) {
  plot::HeatMaps h{.rows = 5000, .columns = 5000, .maps = {{"", std::vector<float>(25000000)}}};
  const auto before = colors_of(plot::draw_heat_maps(h));
  h.maps[0].values[12345678] = 0.3f;
  auto now = colors_of(plot::draw_heat_maps(h));
  EXPECT_LT(plot::draw_heat_maps(h).width(), 1200);
  EXPECT_EQ(now[shade(0.3f)], before.contains(shade(0.3f)) ? before.at(shade(0.3f)) + 1 : 1);
}

TEST(HeatMap, MismatchedSizesAreRefused) {
  EXPECT_THROW(plot::draw_heat_maps(two_by_three({0, 0})), ShapeError);
  plot::HeatMaps h = two_by_three({0, 0, 0, 0, 0, 0});
  h.across = 0;
  EXPECT_THROW(plot::draw_heat_maps(h), ShapeError);
  h.across = 500, h.maps.resize(500, h.maps[0]);
  EXPECT_THROW(plot::draw_heat_maps(h), Error) << "wider than an image can be";
}

}  // namespace
}  // namespace tg
