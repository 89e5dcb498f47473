// Compares pictures pixel by pixel with the reviewed pictures in tests/io/pictures. After an intended change,
// set TG_PICTURES=FOLDER to write the new pictures to FOLDER.
#include <tilegrad/io/plots/heat_map.h>
#include <tilegrad/io/plots/png_plot.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include <tilegrad/io/files/file.h>

#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_ONLY_PNG
#define STBI_NO_STDIO
#include <stb/stb_image.h>

namespace {

using namespace tg;
using plot::Color, plot::Image, plot::Point;

constexpr Color white{255, 255, 255}, black{0, 0, 0}, red{220, 40, 30}, green{20, 150, 60}, blue{30, 60, 220};

// Returns a part of a picture as text. Each character is the darkness of a pixel, from 0 to 9.
template <class At>
std::string dump(int x0, int y0, int x1, int y1, At at) {
  std::string text;
  for (int y = y0; y < y1; ++y, text += '\n')
    for (int x = x0; x < x1; ++x) {
      const Color c = at(x, y);
      text += " 123456789"[(765 - c.r - c.g - c.b) * 10 / 766];
    }
  return text;
}

// Rounding errors of the C library can change a pixel by 1 if its value is near the middle of two integers.
// This affects one of 10⁵ pixels.
void expect_stored(const std::string& name, const Image& image) {
  const std::string file = name + ".png";
  if (const char* folder = std::getenv("TG_PICTURES"))
    return image.save_png(std::string(folder) + "/" + file);
  const std::string path = GOLDEN_FILES "io/pictures/" + file;
  const std::string bytes = io::read_file(path, "pictures");
  int width = 0, height = 0, channels = 0;
  stbi_uc* pixels = stbi_load_from_memory(reinterpret_cast<const stbi_uc*>(bytes.data()),
                                          static_cast<int>(bytes.size()), &width, &height, &channels, 3);
  ASSERT_NE(pixels, nullptr) << path;
  ASSERT_EQ(image.width(), width) << name;
  ASSERT_EQ(image.height(), height) << name;
  const auto stored = [&](int x, int y) {
    const stbi_uc* p = pixels + 3 * (y * width + x);
    return Color{p[0], p[1], p[2]};
  };
  const auto drawn = [&](int x, int y) { return image.at(x, y); };
  int rounded = 0, wrong = 0, left = width, top = height, right = 0, bottom = 0;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x) {
      const Color a = stored(x, y), b = drawn(x, y);
      if (a == b) continue;
      ++rounded;
      if (std::max({std::abs(a.r - b.r), std::abs(a.g - b.g), std::abs(a.b - b.b)}) <= 1) continue;
      ++wrong;
      left = std::min(left, x), top = std::min(top, y), right = std::max(right, x + 1),
      bottom = std::max(bottom, y + 1);
    }
  EXPECT_LE(rounded, width * height / 5000) << name;
  EXPECT_EQ(wrong, 0) << name << ": pixels differ from (" << left << ", " << top << ") to (" << right << ", "
                      << bottom << "). Expected there:\n"
                      << dump(left, top, std::min(right, left + 100), std::min(bottom, top + 40), stored)
                      << "Drawn:\n"
                      << dump(left, top, std::min(right, left + 100), std::min(bottom, top + 40), drawn);
  stbi_image_free(pixels);
}

TEST(Pictures, CanvasMatches) {
  Image image(150, 110, {250, 245, 225});
  image.fill(-5, -5, 12, 8, red);
  image.fill(140, 100, 170, 130, green, 0.25f);
  image.fill(5, 4, 30, 14, blue, 0.5f);
  image.fill(20, 20, 20, 40, red), image.fill(20, 20, 40, 20, red);
  for (int i = 0; i < 8; ++i) image.set(20 * i - 3, i - 2, black);
  for (const float width : {0.4f, 1.0f, 2.5f, 6.0f}) {
    const float y = 18 + 3 * width;
    image.line({5, y}, {35, y}, width, black);
    image.line({40, y}, {70, y + 6.3f}, width, blue, 0.6f);
    image.line({75 + 7 * width, 14}, {74 + 7 * width, 40.5f}, width, red);
  }
  image.line({-10, 100}, {20, 120}, 3, green);
  image.line({140, -4}, {160, 25}, 5, green);
  image.line({200, 300}, {400, 300}, 5, red);
  image.line({20, 50}, {90, 50}, 0, red);
  const std::vector<plot::Polyline> lines{
      {{15, 50}, {40, 55}, {30, 75}}, {{12, 60}, {45, 68}}, {{50, 60}}, {}};
  image.stroke(lines, 5, black, 0.4f);
  image.disc({70.25f, 65.5f}, 7, red), image.disc({85, 65}, 0.5f, black);
  image.text({95, 60}, "Left", {});
  image.text({140, 84}, "right", {.size = 14, .color = red, .align = plot::TextStyle::Align::right});
  image.text({60, 95}, "centre", {.size = 16, .align = plot::TextStyle::Align::center, .weight = 2});
  image.text({100, 100}, "small text", {.size = 8, .color = blue});
  image.text({14, 108}, "up", {.size = 18, .color = red, .upwards = true});
  image.text({147, 60}, "mid", {.size = 12, .align = plot::TextStyle::Align::center, .upwards = true});
  expect_stored("canvas", image);
}

// Draws every glyph, characters without a glyph, and bytes that are not UTF-8.
TEST(Pictures, TypefaceMatches) {
  Image image(500, 184, white);
  const char* rows[] = {"!\"#$%&'()*+,-./0123456789:;<=>?@", "ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`",
                        "abcdefghijklmnopqrstuvwxyz{|}~", "·×±−–—°µ√∞≤≥≈ξ 10⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁵⁺ⁱ",
                        "a b\u00a0c\u20acd\xf0\x9f\x98\x80 \xff\xc3 A/0/9:9 5¹5⁻³"};
  for (int i = 0; i < 5; ++i)
    image.text({8, 30.0f + 35 * static_cast<float>(i)}, rows[i], {.size = 24, .color = black});
  expect_stored("typeface", image);
}

TEST(Pictures, PlotsMatch) {
  expect_stored("plot_bare", plot::draw_plot({.series = {{.label = "a"}}, .width = 320, .height = 240}));

  plot::Plot lines{.title = "A title that is nearly as wide as all",
                   .x_label = "step",
                   .y_label = "loss in nats",
                   .width = 540,
                   .height = 380};
  lines.series.resize(6);
  lines.series[0].label = "with marks", lines.series[0].markers = true;
  lines.series[1].label = "faint", lines.series[1].faint = true;
  lines.series[2].label = "own colour", lines.series[2].color = black;
  for (int i = 0; i <= 24; ++i)
    for (int k = 0; k < 5; ++k) {
      const double t = i / 24.0, gap = k == 0 && (i == 4 || i == 6 || i == 15) ? NAN : 0.0;
      lines.series[static_cast<std::size_t>(k)].x.push_back(1000 * t + (i == 15 ? gap : 0));
      lines.series[static_cast<std::size_t>(k)].y.push_back(3 * std::cos(3 * t + k) - 1 + k * t + gap);
    }
  lines.series[2].y[10] = 1e300, lines.series[2].y[20] = -INFINITY;
  lines.series[4].faint = lines.series[4].markers = true, lines.series[4].label = "faint with marks";
  lines.series[5].label = "a box";
  expect_stored("plot_lines", plot::draw_plot(lines));

  plot::Plot log{
      .title = "Powers", .x_label = "n", .log_x = true, .log_y = true, .width = 480, .height = 340};
  log.series = {
      {.label = "n²", .x = {0.02, 0.5, 0, 8, -2, 300, 5e3}, .y = {4e-4, 0.25, 5, 64, 3, 9e4, 2.5e7}},
      {.label = "1/n", .x = {0.01, 40, 70, 90}, .y = {100, 0.025, 0, 1e301}, .markers = true}};
  log.boxes = {
      {3, 1e3, 30, 1e5, green}, {0, 1, 2, 3, red}, {1, 2, -3, 3, red}, {1, 0, 2, 3, red}, {1, 2, 3, 0, red}};
  expect_stored("plot_log", plot::draw_plot(log));

  plot::Plot boxes{.title = "Boxes and what they mean", .y_label = "size", .width = 520, .height = 300};
  for (int i = 0; i < 12; ++i)  // widths of 0.5 to 6 pixels and more, in both directions
    boxes.boxes.push_back({i * 10.0, 0, i * 10 + i * i * 0.06 + 0.2, 40, i % 2 ? red : green});
  for (int i = 0; i < 6; ++i) boxes.boxes.push_back({60, 60 + i * 1.1, 30, 61 + i * 1.1 - (i == 3), blue});
  boxes.boxes.push_back({70, 50, NAN, 60, red}), boxes.boxes.push_back({70, 50, 80, INFINITY, red});
  boxes.boxes.push_back({NAN, 50, 80, 60, red}), boxes.boxes.push_back({70, NAN, 80, 60, red});
  boxes.boxes.push_back({100, 90, 90, 50, {120, 120, 120}}), boxes.boxes.push_back({101, 50, 101, 50, black});
  boxes.series = {{.label = "green", .color = green},
                  {.label = "", .color = red},
                  {.label = "line", .x = {0, 110}, .y = {70, 45}}};
  boxes.legend_outside = true;
  expect_stored("plot_boxes", plot::draw_plot(boxes));

  // If numbers would touch, some are omitted. If a title is too long, it is drawn smaller.
  plot::Plot narrow{.title = "A title that is too long for a picture as narrow as this one",
                    .x_label = "bytes",
                    .log_y = true,
                    .series = {{.x = {1000100, 1000400, 1000500}, .y = {1.3, 2, 5.5}}},
                    .width = 320,
                    .height = 240};
  expect_stored("plot_narrow", plot::draw_plot(narrow));
  narrow = {
      .log_x = true, .series = {{.x = {2.1e-4, 8.8e-4}, .y = {-2e-7, 9e-7}}}, .width = 360, .height = 260};
  expect_stored("plot_small_numbers", plot::draw_plot(narrow));
}

// If points are in three corners, the legend is in the fourth corner. If points are in all four corners, the
// legend is in the corner with the fewest points.
TEST(Pictures, LegendsInEachCornerMatch) {
  for (int corner = 0; corner < 4; ++corner) {
    plot::Plot plot{
        .series = {{.label = "taken", .markers = true, .color = blue}}, .width = 340, .height = 250};
    plot.boxes = {{0, 0, 0, 0, white}, {10, 10, 10, 10, white}};
    for (int i = 0; i < 4; ++i)
      for (int n = 0; n < (i == corner ? 1 : 2); ++n)
        plot.series[0].x.insert(plot.series[0].x.end(), {i % 2 ? 1.0 + n : 9.0 - n, NAN}),
            plot.series[0].y.insert(plot.series[0].y.end(), {i / 2 ? 1.0 : 9.0, 0});
    expect_stored("legend_" + std::to_string(corner), plot::draw_plot(plot));
  }
}

TEST(Pictures, HeatMapsMatch) {
  plot::HeatMaps h{.title = "Attention of two heads",
                   .x_label = "keys",
                   .y_label = "queries",
                   .scale = "share of a row",
                   .rows = 3,
                   .columns = 4,
                   .across = 2,
                   .row_names = {"the", "cat", "sat"},
                   .column_names = {"a", "bc", "d", "ef"}};
  for (int m = 0; m < 3; ++m) {
    h.maps.push_back({"head " + std::to_string(m), {}});
    for (int i = 0; i < 12; ++i) h.maps.back().values.push_back(static_cast<float>(i * (m + 1)) / 36);
  }
  expect_stored("heat_upright", plot::draw_heat_maps(h));
  h.title = "A title that is far too long for the width of this picture, and so it is set in smaller letters";
  h.maps.resize(2), h.column_names = {"quite long", "long too", "d", "a"};
  h.maps[0].title = "a map whose title is wider than its cells";
  h.row_names[1] = "a long name", h.maps[1].title = "a title that is not so wide";
  expect_stored("heat_turned", plot::draw_heat_maps(h));
}

}  // namespace
