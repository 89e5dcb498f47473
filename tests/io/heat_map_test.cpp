// Heat maps: shades, sizes, and where cells lie.
#include <tilegrad/io/plots/heat_map.h>

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <tuple>

#include <tilegrad/core/base/error.h>

namespace tg {
namespace {

using Shade = std::tuple<int, int, int>;

// Pixels of each colour.
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

TEST(HeatMap, ShadesDarkenFromWhiteAndHoldWithinTheirEnds) {
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

TEST(HeatMap, CellsAreSquaresOfOneSizeAndTheirOwnShade) {
  const plot::HeatMaps h = two_by_three({0.3f, 0.3f, 0.3f, 0.7f, 0.7f, 0.05f});
  const plot::Image bare = plot::draw_heat_maps(two_by_three({0, 0, 0, 0, 0, 0})),
                    image = plot::draw_heat_maps(h);
  auto now = colors_of(image), before = colors_of(bare);  // the strip of shades is in both
  const int cell = now[shade(0.05f)] - before[shade(0.05f)];
  EXPECT_GT(cell, 1000);
  EXPECT_NEAR(now[shade(0.3f)] - before[shade(0.3f)], 3 * cell, cell / 10.0);
  EXPECT_NEAR(now[shade(0.7f)] - before[shade(0.7f)], 2 * cell, cell / 10.0);
}

TEST(HeatMap, NamesAreDrawnWhereTheyFitAndNotElsewhere) {
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
  EXPECT_EQ(with.height(), plot::draw_heat_maps(large).height());
}

// 5000 × 5000 cells, of which one is not white: a pixel shows the largest of its cells.
TEST(HeatMap, ASingleCellIsSeenAmongMoreCellsThanPixels) {
  plot::HeatMaps h{.rows = 5000, .columns = 5000, .maps = {{"", std::vector<float>(25000000)}}};
  const auto before = colors_of(plot::draw_heat_maps(h));
  h.maps[0].values[12345678] = 0.3f;
  auto now = colors_of(plot::draw_heat_maps(h));
  EXPECT_LT(plot::draw_heat_maps(h).width(), 1200);
  EXPECT_EQ(now[shade(0.3f)], before.contains(shade(0.3f)) ? before.at(shade(0.3f)) + 1 : 1);
}

TEST(HeatMap, SizesThatDoNotAgreeAreRefused) {
  EXPECT_THROW(plot::draw_heat_maps(two_by_three({0, 0})), ShapeError);
  plot::HeatMaps h = two_by_three({0, 0, 0, 0, 0, 0});
  h.across = 0;
  EXPECT_THROW(plot::draw_heat_maps(h), ShapeError);
  h.across = 500, h.maps.resize(500, h.maps[0]);
  EXPECT_THROW(plot::draw_heat_maps(h), Error) << "wider than an image can be";
}

}  // namespace
}  // namespace tg
