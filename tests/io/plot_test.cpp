// Tests the canvas, its typeface and the plots. Every object must be drawn at the right position, and files
// must be PNGs.
#include <tilegrad/io/plots/png_plot.h>

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include "io/plots/plot_parts.h"

#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_ONLY_PNG
#define STBI_NO_STDIO
#include <stb/stb_image.h>

namespace tg {
namespace {

constexpr plot::Color white{255, 255, 255}, black{0, 0, 0}, red{255, 0, 0};

// Returns the sum of the coverage of all pixels by black on white.
double ink_of(const plot::Image& image) {
  double sum = 0;
  for (int y = 0; y < image.height(); ++y) {
    for (int x = 0; x < image.width(); ++x) sum += 1 - image.at(x, y).g / 255.0;
  }
  return sum;
}

// Returns the mean height of the pixels of exactly this color in each column. Columns without such pixels are
// omitted.
std::map<int, double> columns_of(const plot::Image& image, plot::Color color) {
  std::map<int, double> found;
  for (int x = 0; x < image.width(); ++x) {
    double sum = 0;
    int n = 0;
    for (int y = 0; y < image.height(); ++y) {
      if (image.at(x, y) == color) sum += y + 0.5, ++n;
    }
    if (n > 0) found[x] = sum / n;
  }
  return found;
}

plot::Plot one_series(std::vector<double> x, std::vector<double> y) {
  plot::Plot plot;
  plot.series.push_back({.x = std::move(x), .y = std::move(y), .color = red});
  return plot;
}

TEST(Image, APngReadsBackPixelForPixel) {
  plot::Image image(37, 23, {10, 20, 30});
  image.line({2, 3}, {30, 20}, 3, red);
  image.set(0, 22, {1, 2, 3});
  const std::string file = image.png();
  int width = 0, height = 0, channels = 0;
  stbi_uc* pixels = stbi_load_from_memory(reinterpret_cast<const stbi_uc*>(file.data()), int(file.size()),
                                          &width, &height, &channels, 0);
  ASSERT_NE(pixels, nullptr) << stbi_failure_reason();
  EXPECT_EQ(width, 37);
  EXPECT_EQ(height, 23);
  EXPECT_EQ(channels, 3);
  for (int i = 0; i < 37 * 23; ++i) {
    EXPECT_EQ((plot::Color{pixels[3 * i], pixels[3 * i + 1], pixels[3 * i + 2]}), image.at(i % 37, i / 37));
  }
  stbi_image_free(pixels);
}

TEST(Image, AStrokeCoversItsLengthTimesItsWidthAtEveryAngle) {
  for (int degrees = 0; degrees < 180; degrees += 15) {
    const float angle = float(degrees) * 3.14159265f / 180, dx = 80 * std::cos(angle),
                dy = 80 * std::sin(angle);
    plot::Image image(200, 200, white);
    image.line({100 - dx / 2, 100 - dy / 2}, {100 + dx / 2, 100 + dy / 2}, 4, black);
    // The stroke covers 80 × 4 and two half discs of radius 2. Coverage is computed from the distance. This
    // is exact for horizontal and vertical lines. For diagonal lines and at the ends, the error is below 2 %.
    const double expected = 80 * 4 + 3.14159265 * 4;
    EXPECT_NEAR(ink_of(image), expected, 0.02 * expected) << degrees;
  }
}

TEST(Image, CrossingLinesOfOneStrokeAreNotDarker) {
  plot::Image image(40, 40, white);
  const std::vector<plot::Polyline> cross{{{5, 20}, {35, 20}}, {{20, 5}, {20, 35}}, {{5, 20}, {35, 20}}};
  image.stroke(cross, 6, black, 0.5f);
  EXPECT_EQ(image.at(20, 20), image.at(10, 20));
  EXPECT_NEAR(image.at(20, 20).g, 127, 2);
}

TEST(Image, DrawingOutsideIsClipped) {
  plot::Image image(20, 10, white);
  image.line({-100, 5}, {100, 5}, 2, black);
  image.line({-50, -50}, {-20, -90}, 5, black);
  image.line({1e7f, 1e7f}, {2e7f, 1e7f}, 5, black);
  image.fill(-5, -5, 3, 3, red);
  image.set(20, 0, red);
  image.text({-30, 300}, "outside", {});
  EXPECT_EQ(image.at(10, 5), black);
  EXPECT_EQ(image.at(0, 0), red);
  EXPECT_EQ(image.at(19, 0), white);
  EXPECT_THROW(image.at(20, 0), Error);
  EXPECT_THROW(plot::Image(0, 5, white), Error);
  EXPECT_THROW(plot::Image(100000, 5, white), Error);
}

TEST(Image, AnAlphaOutOfRangeIsRefused) {
  plot::Image image(3, 3, white);
  for (const float alpha : {-0.5f, 1.5f, std::nanf("")}) {
    EXPECT_THROW(image.fill(0, 0, 3, 3, black, alpha), Error);
    EXPECT_THROW(image.line({0, 0}, {3, 3}, 1, black, alpha), Error);
  }
  EXPECT_EQ(image.at(1, 1), white);
}

TEST(StrokeFont, EveryPrintableCharacterHasADifferentGlyph) {
  const auto picture = [](const std::string& text) {
    plot::Image image(60, 60, white);
    image.text({15, 40}, text, {.size = 30});
    return image.png();
  };
  const std::string box = picture("\xef\xbf\xbf"), blank = picture(" ");
  std::set<std::string> seen{box, blank};
  for (char c = '!'; c <= '~'; ++c) EXPECT_TRUE(seen.insert(picture(std::string(1, c))).second) << c;
  for (const char* s : {"·", "×", "±", "−", "–", "—", "°", "µ", "√", "∞", "≤", "≥", "≈",
                        "ξ", "⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹", "⁻"}) {
    EXPECT_TRUE(seen.insert(picture(s)).second) << s;
  }
  EXPECT_EQ(picture("\xf0\x9f\x98\x80"), box);  // a character without a glyph
  EXPECT_EQ(picture("\xff"), box);              // a byte that is not UTF-8
}

TEST(StrokeFont, GlyphsStandOnTheBaselineAndScaleWithTheSize) {
  const auto top_and_bottom = [](const char* s, float size) {
    float top = -1e9f, bottom = 1e9f;
    for (const plot::Polyline& line : plot::stroke_text(s, size).lines) {
      for (const plot::Point p : line) top = std::max(top, p.y), bottom = std::min(bottom, p.y);
    }
    return std::pair(top, bottom);
  };
  for (const char* s : {"H", "E", "O", "0", "8", "S"}) {
    const auto [top, bottom] = top_and_bottom(s, 100);
    EXPECT_NEAR(top, 70, 1.5) << s;
    EXPECT_NEAR(bottom, 0, 1.5) << s;
  }
  EXPECT_LT(top_and_bottom("g", 100).second, -15);
  EXPECT_FLOAT_EQ(plot::stroke_text("loss", 40).width, 2 * plot::stroke_text("loss", 20).width);
  EXPECT_FLOAT_EQ(plot::stroke_text("111", 20).width, plot::stroke_text("808", 20).width) << "digits line up";
  EXPECT_EQ(plot::stroke_text("", 20).width, 0);
}

TEST(StrokeFont, AlignmentAndRotationPositionTheString) {
  const auto box = [](plot::TextStyle style) {
    plot::Image image(200, 200, white);
    style.size = 20;
    image.text({100, 100}, "HHHH", style);
    int x0 = 200, x1 = 0, y0 = 200, y1 = 0;
    for (int y = 0; y < 200; ++y) {
      for (int x = 0; x < 200; ++x) {
        if (image.at(x, y).g < 128)
          x0 = std::min(x0, x), x1 = std::max(x1, x), y0 = std::min(y0, y), y1 = std::max(y1, y);
      }
    }
    return std::array{x0, x1, y0, y1};
  };
  using enum plot::TextStyle::Align;
  EXPECT_GE(box({.align = left})[0], 100);
  EXPECT_LE(box({.align = right})[1], 100);
  EXPECT_NEAR(box({.align = center})[0] + box({.align = center})[1], 200, 2);
  EXPECT_LE(box({.align = left})[3], 101);  // above the baseline
  const auto up = box({.align = left, .upwards = true});
  EXPECT_LE(up[3], 100);  // extends upward from the anchor; the letters' top is at the left
  EXPECT_LE(up[1], 101);
  EXPECT_GT(up[3] - up[2], up[1] - up[0]);
}

std::vector<std::string> labels_of(const plot::PlotAxis& axis) {
  std::vector<std::string> labels;
  for (const plot::PlotTick& t : axis.ticks) {
    if (!t.label.empty()) labels.push_back(t.label);
  }
  return labels;
}

TEST(Axis, LinearTicksAreRoundNumbers) {
  using Labels = std::vector<std::string>;
  EXPECT_EQ(labels_of(plot::make_plot_axis(0, 2000, false, 8)), (Labels{"0", "500", "1000", "1500", "2000"}));
  EXPECT_EQ(labels_of(plot::make_plot_axis(-1, 1, false, 5)), (Labels{"−1.0", "−0.5", "0.0", "0.5", "1.0"}));
  EXPECT_EQ(labels_of(plot::make_plot_axis(0, 3e6, false, 4)), (Labels{"0", "1×10⁶", "2×10⁶", "3×10⁶"}));
  EXPECT_EQ(labels_of(plot::make_plot_axis(0, 5e-5, false, 3)), (Labels{"0", "2×10⁻⁵", "4×10⁻⁵"}));
}

TEST(Axis, LogTicksAreAtPowersOfTen) {
  using Labels = std::vector<std::string>;
  EXPECT_EQ(labels_of(plot::make_plot_axis(1e-3, 1e2, true, 8)),
            (Labels{"10⁻³", "10⁻²", "10⁻¹", "10⁰", "10¹", "10²"}));
  const auto wide = labels_of(plot::make_plot_axis(1e-12, 1, true, 7));
  EXPECT_EQ(wide.front(), "10⁻¹²");
  EXPECT_EQ(wide[1], "10⁻¹⁰");
  EXPECT_EQ(labels_of(plot::make_plot_axis(1, 50, true, 8)), (Labels{"1", "2", "5", "10", "20", "50"}));
}

// An axis of at most max(count, 6) / 3 decades also has labels between the powers.
TEST(Axis, LogTicksBetweenPowersAreLabelledIfThereIsRoom) {
  for (const auto& [count, most] : {std::pair(2, 2.0), {6, 2.0}, {9, 3.0}}) {
    for (const double decades : {most - 0.05, most + 0.05}) {  // margins of 0.04 on either side are added
      const auto labels = labels_of(plot::make_plot_axis(1, std::pow(10, decades / 1.08), true, count));
      EXPECT_EQ(std::ranges::count(labels, "5"), decades < most) << count << ", " << decades;
      EXPECT_EQ(std::ranges::count(labels, decades < most ? "1" : "10⁰"), 1) << count << ", " << decades;
    }
  }
}

// Margins are 4 % on either side. If all values are equal, the margin is a tenth of the value, or 1 if the
// value is
// 0. On a log axis, it is half a decade.
TEST(Axis, MarginsAreAShareOfTheLength) {
  const struct {
    double lo, hi;
    bool log;
    double axis_lo, axis_hi;
  } cases[] = {{0, 100, false, -4, 104},        {1, 100, true, -0.08, 2.08},    {5, 5, false, 4.5, 5.5},
               {-5, -5, false, -5.5, -4.5},     {0, 0, false, -1, 1},           {100, 100, true, 1.5, 2.5},
               {5, 5 + 1e-14, false, 4.5, 5.5}, {3e9, 3e9, false, 2.7e9, 3.3e9}};
  for (const auto& c : cases) {
    const plot::PlotAxis axis = plot::make_plot_axis(c.lo, c.hi, c.log, 7);
    EXPECT_NEAR(axis.lo, c.axis_lo, 1e-12 * std::abs(c.axis_lo)) << c.lo << " to " << c.hi;
    EXPECT_NEAR(axis.hi, c.axis_hi, 1e-12 * std::abs(c.axis_hi)) << c.lo << " to " << c.hi;
  }
}

TEST(Axis, TicksIncludeBothEnds) {
  for (const bool log : {false, true}) {  // margins of 1 for a length of 25
    const auto at = [&](int n) { return log ? std::pow(10.0, n) : n; };
    const auto labels = labels_of(plot::make_plot_axis(at(1), at(26), log, 27));
    EXPECT_EQ(labels.size(), 28u);
    EXPECT_EQ(labels.front(), log ? "10⁰" : "0");
    EXPECT_EQ(labels.back(), log ? "10²⁷" : "27");
  }
}

// If an axis covers less than a decade, numbers from 0.001 to 90000 are decimals. Otherwise they are powers.
TEST(Axis, NumbersOfOneDecadeAreDecimals) {
  using Labels = std::vector<std::string>;
  const std::pair<int, Labels> cases[] = {{-4, {"2×10⁻⁴", "3×10⁻⁴", "4×10⁻⁴", "5×10⁻⁴"}},
                                          {-3, {"0.002", "0.003", "0.004", "0.005"}},
                                          {-1, {"0.2", "0.3", "0.4", "0.5"}},
                                          {0, {"2", "3", "4", "5"}},
                                          {4, {"20000", "30000", "40000", "50000"}},
                                          {5, {"2×10⁵", "3×10⁵", "4×10⁵", "5×10⁵"}}};
  for (const auto& [power, expected] : cases) {
    const double unit = std::pow(10.0, power);
    EXPECT_EQ(labels_of(plot::make_plot_axis(2 * unit, 5 * unit, true, 9)), expected) << power;
  }
}

TEST(Axis, EveryAxisHasALengthTicksInsideAndDistinctNumbers) {
  for (const bool log : {false, true}) {
    for (const auto& [lo, hi] : {std::pair(1.0, 2.0),
                                 {3.0, 3.0},
                                 {1e-9, 1e9},
                                 {0.001, 0.0011},
                                 {1e200, 1e299},
                                 {1e-320, 1e-310},
                                 {4.17, 4.18},
                                 {999.0, 1001.0},
                                 {1e-7, 1e-5},
                                 {1234567.0, 1234568.0}}) {
      const plot::PlotAxis axis = plot::make_plot_axis(lo, hi, log, 7);
      EXPECT_LT(axis.lo, axis.hi);
      const auto labels = labels_of(axis);
      EXPECT_EQ(std::set(labels.begin(), labels.end()).size(), labels.size()) << lo << " to " << hi;
      EXPECT_LE(axis.ticks.size(), 120u);
      for (const plot::PlotTick& t : axis.ticks) {
        EXPECT_GE(axis.place(t.value), -1e-6);
        EXPECT_LE(axis.place(t.value), 1 + 1e-6);
      }
    }
  }
  EXPECT_LT(plot::make_plot_axis(0, 0, false, 7).lo, plot::make_plot_axis(0, 0, false, 7).hi);
}

TEST(Plot, ARisingLineStartsLowerLeftAndEndsUpperRight) {
  const auto line = columns_of(plot::draw_plot(one_series({0, 1}, {0, 1})), red);
  ASSERT_GT(line.size(), 800u);
  EXPECT_GT(line.begin()->second, 600);
  EXPECT_LT(line.rbegin()->second, 200);
  for (auto it = line.begin(), next = std::next(it); next != line.end(); ++it, ++next) {
    EXPECT_LE(next->second, it->second + 1e-9);
  }
}

TEST(Plot, APowerLawIsStraightOnLogarithmicAxes) {
  std::vector<double> x, y;
  for (int i = 0; i <= 60; ++i)
    x.push_back(std::pow(10, -6 + i / 10.0)), y.push_back(3e-4 / std::pow(x.back(), 2.5));
  plot::Plot plot = one_series(x, y);
  plot.log_x = plot.log_y = true;
  const auto line = columns_of(plot::draw_plot(plot), red);
  ASSERT_GT(line.size(), 800u);
  const auto [x0, y0] = *line.begin();
  const auto [x1, y1] = *line.rbegin();
  for (const auto& [px, py] : line) EXPECT_NEAR(py, y0 + (y1 - y0) * (px - x0) / (x1 - x0), 2.0);
}

TEST(Plot, UndrawableValuesAreGaps) {
  for (const double bad : {std::nan(""), double(INFINITY), 0.0, -1.0, 1e305}) {
    std::vector<double> x, y;
    for (int i = 1; i <= 100; ++i) x.push_back(i), y.push_back(i > 40 && i < 60 ? bad : 5.0);
    plot::Plot plot = one_series(x, y);
    plot.log_y = true;
    if (!std::isfinite(bad)) {  // values of x, too
      plot.series[0].y.assign(100, 5.0);
      std::fill(plot.series[0].x.begin() + 40, plot.series[0].x.begin() + 59, bad);
    }
    const auto line = columns_of(plot::draw_plot(plot), red);
    ASSERT_GT(line.size(), 700u);
    int widest = 0;
    for (auto it = line.begin(), next = std::next(it); next != line.end(); ++it, ++next) {
      widest = std::max(widest, next->first - it->first);
    }
    EXPECT_GT(widest, 180);
    EXPECT_LT(widest, 240);
  }
}

TEST(Plot, AnEmptyPlotStillHasLabeledAxes) {
  plot::Plot plot{.title = "nothing", .x_label = "x", .y_label = "y"};
  const plot::Image empty = plot::draw_plot(plot);
  EXPECT_GT(ink_of(empty), 1000);
  plot = one_series({1, 2}, {NAN, NAN});
  EXPECT_TRUE(columns_of(plot::draw_plot(plot), red).empty());
}

TEST(Plot, MarkersAreOnThePointsAndTheLegendAvoidsThem) {
  plot::Plot plot = one_series({0, 1, 2}, {0, 1, 0});
  plot.series[0].markers = true;
  const plot::Image bare = plot::draw_plot(plot);
  plot.series[0].label = "peak";
  const plot::Image labelled = plot::draw_plot(plot);
  // If a pixel is red in the plot without a legend, it must also be red with a legend.
  int more = 0;
  for (int y = 0; y < bare.height(); ++y) {
    for (int x = 0; x < bare.width(); ++x) {
      if (bare.at(x, y) == red) {
        EXPECT_EQ(labelled.at(x, y), red);
      } else {
        more += labelled.at(x, y) == red;
      }
    }
  }
  EXPECT_GT(more, 100) << "the legend shows the line";
  const auto line = columns_of(bare, red);
  EXPECT_NEAR(line.rbegin()->first - line.begin()->first, 1001, 120);
}

// Returns the bounding box (left, top, right, bottom) of all pixels of exactly this color.
std::array<int, 4> extent_of(const plot::Image& image, plot::Color color) {
  std::array<int, 4> e{image.width(), image.height(), -1, -1};
  for (int y = 0; y < image.height(); ++y)
    for (int x = 0; x < image.width(); ++x)
      if (image.at(x, y) == color)
        e = {std::min(e[0], x), std::min(e[1], y), std::max(e[2], x), std::max(e[3], y)};
  return e;
}

// Returns the middle of each run of pixels with at least this darkness. The pixels are in a row, or in a
// column if `down` is set.
std::vector<double> marks_of(const plot::Image& image, bool down, int at, int from, int to, int darkness) {
  std::vector<double> middles;
  int begin = -1;
  for (int i = from; i <= to; ++i) {
    const bool is_marked = i < to && 255 - (down ? image.at(at, i) : image.at(i, at)).g >= darkness;
    if (is_marked && begin < 0) begin = i;
    if (!is_marked && begin >= 0) middles.push_back((begin + i) / 2.0), begin = -1;
  }
  return middles;
}

// Finds the axes. They are the column and the row with the most dark pixels.
std::array<int, 2> axes_of(const plot::Image& image) {
  std::map<int, int> in_column, in_row;
  for (int y = 0; y < image.height(); ++y)
    for (int x = 0; x < image.width(); ++x)
      if (image.at(x, y).r < 160) ++in_column[x], ++in_row[y];
  const auto most = [](const auto& counts) {
    return std::ranges::max_element(counts, {}, [](const auto& c) { return c.second; })->first;
  };
  return {most(in_column), most(in_row)};
}

// Each grid line has a tick outside the axes at the same position, and a number next to it.
TEST(Plot, TicksAndNumbersAreAtGridLines) {
  plot::Plot plot = one_series({0, 40}, {0, 40});
  plot.series[0].y = {NAN, NAN};
  plot.boxes = {{0, 0, 0, 0, white}, {40, 40, 40, 40, white}};
  const plot::Image image = plot::draw_plot(plot);
  constexpr int soft = 255 - 98 - 20, grid = 10;
  const auto [left, bottom] = axes_of(image);
  const int right = image.width() - 36, top = 30;
  for (const bool down : {true, false}) {
    const int from = down ? top + 3 : left + 3, to = down ? bottom - 3 : right - 3;
    const auto lines = marks_of(image, down, down ? left + 20 : bottom - 20, from, to, grid);
    const auto ticks = marks_of(image, down, down ? left - 6 : bottom + 6, from, to, soft);
    ASSERT_EQ(ticks.size(), lines.size()) << down;
    ASSERT_GE(ticks.size(), 4u);
    for (std::size_t i = 0; i < ticks.size(); ++i) EXPECT_NEAR(ticks[i], lines[i], 0.5) << down;
    for (const double tick : ticks) {
      int first = 9999, last = -1;
      for (int i = static_cast<int>(tick) - 40; i < static_cast<int>(tick) + 40; ++i)
        for (int k = down ? 20 : bottom + 11; k < (down ? left - 10 : bottom + 40); ++k)
          if (255 - (down ? image.at(k, i) : image.at(i, k)).g >= soft)
            first = std::min(first, i), last = std::max(last, i);
      EXPECT_NEAR((first + last + 1) / 2.0, tick, 3) << (down ? "y" : "x") << " at " << tick;
    }
  }
}

// The legend is in the only corner without a line. Its distance from the axes must be the same for each
// corner.
TEST(Plot, LegendInEachCornerKeepsTheSameDistance) {
  for (int corner = 0; corner < 4; ++corner) {
    plot::Plot plot = one_series({}, {});
    for (int other = 0; other < 4; ++other) {
      const double x = other % 2 == 0 ? 0 : 60, y = other / 2 == 0 ? 0 : 60;  // of the lower left end
      const bool is_free = other == corner;
      for (const auto& [right, up] : {std::pair(0, 0), {40, 40}, {40, 0}, {0, 40}}) {
        plot.series[0].x.push_back(is_free ? NAN : x + right);
        plot.series[0].y.push_back(is_free ? NAN : y + up);
      }
      plot.series[0].x.push_back(NAN), plot.series[0].y.push_back(NAN);  // a gap in the series
    }
    plot.boxes = {{0, 0, 0, 0, white}, {100, 100, 100, 100, white}};
    const plot::Image bare = plot::draw_plot(plot);
    plot.series[0].label = "label";
    const plot::Image image = plot::draw_plot(plot);
    std::array<int, 4> e{image.width(), image.height(), -1, -1};  // bounding box of changed pixels
    for (int y = 0; y < image.height(); ++y)
      for (int x = 0; x < image.width(); ++x)
        if (image.at(x, y) != bare.at(x, y))
          e = {std::min(e[0], x), std::min(e[1], y), std::max(e[2], x), std::max(e[3], y)};
    const auto [left, bottom] = axes_of(bare);
    const int right = image.width() - 36, top = 30;
    const bool is_right = corner % 2 == 1, is_high = corner / 2 == 1;
    EXPECT_NEAR(is_right ? right - e[2] : e[0] - left, 16, 1.5) << corner;
    EXPECT_NEAR(is_high ? e[1] - top : bottom - e[3], 16, 1.5) << corner;
  }
}

TEST(Plot, BoxesFillTheirRangeAndTheFlattestIsStillVisible) {
  plot::Plot plot = one_series({0, 100}, {0, 100});
  plot.series[0].color = black;
  plot.boxes = {{20, 10, 40, 60, red}};
  const auto [l, t, r, b] = extent_of(plot::draw_plot(plot), red);
  const double across = (r - l) / 20.0, down = (b - t) / 50.0;  // pixels per unit
  plot.boxes = {{20, 10, 80, 60, red}};
  const auto [l2, t2, r2, b2] = extent_of(plot::draw_plot(plot), red);
  EXPECT_NEAR(l2, l, 1);
  EXPECT_NEAR(r2 - l2, 60 * across, 5);
  plot.boxes = {{20, 10, 40, 10.001, red}};
  const auto [l3, t3, r3, b3] = extent_of(plot::draw_plot(plot), red);
  EXPECT_EQ(t3, b3);
  EXPECT_NEAR(b3, b, 3);
  EXPECT_NEAR(down * 100, 600, 120);
  plot.boxes = {{20, 10, NAN, 20, red}};
  EXPECT_EQ(extent_of(plot::draw_plot(plot), red)[2], -1);
}

TEST(Plot, BoxesExtendTheAxes) {
  plot::Plot plot;
  plot.boxes = {{1000, 50, 3000, 70, red}};
  const auto [l, t, r, b] = extent_of(plot::draw_plot(plot), red);
  EXPECT_GT(r - l, 900);
  EXPECT_GT(b - t, 500);
}

TEST(Plot, ALegendNextToTheAxesHidesNothing) {
  plot::Plot plot;
  plot.boxes = {{0, 0, 10, 10, red}};
  plot.series = {{.label = "everything", .color = plot::Color{1, 2, 3}}};
  plot.legend_outside = true;
  const plot::Image image = plot::draw_plot(plot);
  const auto box = extent_of(image, red), swatch = extent_of(image, {1, 2, 3});
  EXPECT_GT(swatch[0], box[2]) << "to the right of the axes";
  EXPECT_LT(swatch[2], image.width());
  for (int y = box[1]; y <= box[3]; ++y)
    for (int x = box[0]; x <= box[2]; ++x) {
      const plot::Color c = image.at(x, y);
      ASSERT_EQ(c, red) << x << ", " << y;
    }
}

// There must be empty space between the numbers of the axes and each title or label, and a margin around the
// picture.
TEST(Plot, TitleAndLabelsDoNotTouchTheAxes) {
  const plot::Image bare = plot::draw_plot({}),
                    image = plot::draw_plot({.title = "Title", .x_label = "ratio", .y_label = "loss"});
  const auto [bare_left, bare_bottom] = axes_of(bare);
  const auto [left, bottom] = axes_of(image);
  EXPECT_NEAR(left - bare_left, 1.5 * 25, 1);
  EXPECT_NEAR(bare_bottom - bottom, 1.2 * 25, 1);
  const auto ink = [&](bool of_columns, int from, int to) {  // the first and last column or row of labels
    int first = 9999, last = -1;
    for (int i = from; i < to; ++i)
      for (int k = 0; k < (of_columns ? image.height() : image.width()); ++k)
        if ((of_columns ? image.at(i, k) : image.at(k, i)).r < 60) first = std::min(first, i), last = i;
    return std::pair(first, last);
  };
  const auto [y_first, y_last] = ink(true, 0, left - 60);
  EXPECT_NEAR(y_first, 20, 3);
  EXPECT_LT(y_last, y_first + 25);
  const auto [x_first, x_last] = ink(false, bottom + 45, image.height());
  EXPECT_GT(x_last, x_first);
  EXPECT_NEAR(x_last, image.height() - 20, 3);
  const auto [title_first, title_last] = ink(false, 0, 70);
  EXPECT_NEAR(title_first, 30, 3);
  EXPECT_NEAR(title_last, 30 + 0.7 * 32, 3);
}

// The legend has a sample of each series in its style: a line, a thin line, a line with a disc, or a box.
TEST(Plot, LegendShowsTheStyleOfASeries) {
  const auto height_of_sample = [](plot::Series series) {
    plot::Plot plot;
    plot.boxes = {{0, 0, 0, 0, white}, {100, 100, 100, 100, white}};
    series.label = "l", series.color = black;
    plot.series = {std::move(series)};
    plot.series.push_back({.label = "", .x = {0, 1}, .y = {0, 1}});  // this series has no sample
    const plot::Image image = plot::draw_plot(plot);
    const auto [left, bottom] = axes_of(image);
    int least = 9999, most = 0;  // number of pixels in each nonempty column of a sample
    for (int x = image.width() / 2; x < image.width(); ++x) {
      int n = 0;
      for (int y = 32; y < 90; ++y) {
        const plot::Color c = image.at(x, y);
        n += c.r == c.b && c.r < 225;  // black, or gray if the series is pale
      }
      if (n > 0) least = std::min(least, n), most = std::max(most, n);
    }
    return std::pair(least, most);
  };
  const std::vector<double> x{0, 1}, y{0, 1};
  const auto [line, most_of_line] = height_of_sample({.x = x, .y = y});
  EXPECT_GE(line, 2);
  EXPECT_LE(most_of_line, 4);
  EXPECT_LE(height_of_sample({.x = x, .y = y, .faint = true}).second, 2);
  const auto [least, disc] = height_of_sample({.x = x, .y = y, .markers = true});
  EXPECT_EQ(least, line);
  EXPECT_NEAR(disc, 11, 1);
  EXPECT_EQ(height_of_sample({}), (std::pair(14, 14)));
}

TEST(Plot, ColorsRepeatAfterEight) {
  std::set<std::array<int, 3>> colors;
  for (std::size_t i = 0; i < 8; ++i) {
    const plot::Color c = plot::palette(i);
    colors.insert({c.r, c.g, c.b});
    EXPECT_EQ(plot::palette(i + 8), c);
  }
  EXPECT_EQ(colors.size(), 8u);
  EXPECT_EQ(plot::palette(0), (plot::Color{0, 98, 178}));
  EXPECT_EQ(plot::palette(7), (plot::Color{90, 90, 96}));
}

TEST(Plot, TitleAndLabelsAreDrawn) {
  const plot::Plot bare;
  plot::Plot titled{.title = "title", .x_label = "steps", .y_label = "loss"};
  EXPECT_GT(ink_of(plot::draw_plot(titled)), ink_of(plot::draw_plot(bare)) + 500);
  titled.title = std::string(300, 'w');  // a long title is drawn smaller, inside the picture
  const plot::Image image = plot::draw_plot(titled);
  for (int y = 0; y < 80; ++y) {
    EXPECT_EQ(image.at(2, y), white);
    EXPECT_EQ(image.at(image.width() - 3, y), white);
  }
}

TEST(Plot, ManyPointsAndSmallPicturesWork) {
  std::vector<double> x, y;
  for (int i = 0; i < 100000; ++i) x.push_back(i), y.push_back(std::sin(i * 0.37));
  plot::Plot plot = one_series(x, y);
  plot.width = 320, plot.height = 240;
  EXPECT_GT(columns_of(plot::draw_plot(plot), red).size(), 100u);
  plot.height = 239;
  EXPECT_THROW(plot::draw_plot(plot), Error);
  plot.width = 319, plot.height = 240;
  EXPECT_THROW(plot::draw_plot(plot), Error);
}

TEST(Plot, XAndYMustMatch) {
  try {
    plot::draw_plot(one_series({1, 2, 3}, {1, 2}));
    FAIL() << "accepted";
  } catch (const ShapeError& e) {
    EXPECT_STREQ(e.what(), "[plot] series \"\" has 3 x and 2 y, expected the same number of both");
  }
}

TEST(Plot, SavingReportsAFullDisk) {
  std::string name = (std::filesystem::temp_directory_path() / "tg_plot_XXXXXX").string();
  const std::filesystem::path dir = mkdtemp(name.data());
  plot::save_plot((dir / "a.png").string(), one_series({1, 2}, {1, 2}));
  EXPECT_TRUE(io::read_file((dir / "a.png").string(), "test").starts_with("\x89PNG\r\n\x1a\n"));
  EXPECT_THROW(plot::save_plot("/dev/full", one_series({1, 2}, {1, 2})), Error);
  EXPECT_THROW(plot::save_plot((dir / "no" / "a.png").string(), plot::Plot{}), Error);
  std::filesystem::remove_all(dir);
}

TEST(Smoothed, ConstantsAndLinesAreUnchangedNearTheStart) {
  for (const double v : plot::smoothed({3, 3, 3, 3}, 2)) EXPECT_EQ(v, 3);
  const auto line =
      plot::smoothed({5, 4, 3, 2, 1, 0, -1}, 2);  // a mean of only past values would lag at the steep start
  for (int i = 0; i < 5; ++i) EXPECT_EQ(line[i], 5 - i);
  EXPECT_EQ(line[6], 0);  // mean of 1, 0 and −1
}

TEST(Smoothed, NonFiniteValuesStayGaps) {
  const auto s = plot::smoothed({1, NAN, 2, 6}, 2);
  EXPECT_EQ(s[0], 1);
  EXPECT_TRUE(std::isnan(s[1]));
  EXPECT_EQ(s[2], 3);  // mean of 1, 2 and 6
  EXPECT_EQ(s[3], 4);
  EXPECT_THROW(plot::smoothed({1}, -1), Error);
}

}  // namespace
}  // namespace tg
