// Compares strokes, ticks, means and heat maps with plain code on random inputs.
#include <tilegrad/io/plots/heat_map.h>
#include <tilegrad/io/plots/png_plot.h>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>

#include <tilegrad/core/base/error.h>
#include "io/plots/plot_parts.h"
#include "tests/support/files.h"

namespace {

using namespace tg;
using plot::Color, plot::Image;
using tg::testing::error_of;

constexpr Color white{255, 255, 255}, black{0, 0, 0};

std::mt19937 bits(1);
double uniform(double lo, double hi) {
  return lo + (hi - lo) * static_cast<double>(bits()) / 4294967296.0;
}
int whole(int lo, int hi) {  // a number from lo to hi
  return lo + static_cast<int>(bits() % static_cast<unsigned>(hi - lo + 1));
}

// Returns the distance of a point from a segment.
double distance(double x, double y, plot::Point a, plot::Point b) {
  const double dx = b.x - a.x, dy = b.y - a.y, squared = dx * dx + dy * dy;
  const double t = squared == 0 ? 0 : std::clamp(((x - a.x) * dx + (y - a.y) * dy) / squared, 0.0, 1.0);
  return std::hypot(x - a.x - t * dx, y - a.y - t * dy);
}

// Computes each pixel from its distance to the nearest segment. Coverage is at most 1, and at most the width.
TEST(StrokeReference, PixelIsCoveredByItsDistance) {
  for (int trial = 0; trial < 300; ++trial) {
    const int high = whole(1, 34), wide = whole(1, 40);
    Image image(wide, high, white);
    const double width = std::vector<double>{0.3, 1, 2.5, 7, 33}[static_cast<std::size_t>(whole(0, 4))];
    const double alpha = whole(0, 2) == 0 ? uniform(0, 1) : 1;
    std::vector<plot::Polyline> lines(static_cast<std::size_t>(whole(0, 3)));
    const double spread = whole(0, 1) == 0 ? 60 : 5;
    for (plot::Polyline& line : lines) {
      const double cx = uniform(-10, 50), cy = uniform(-10, 44);
      for (int points = whole(0, 4); points > 0; --points)
        line.push_back({static_cast<float>(cx + uniform(-spread, spread)),
                        static_cast<float>(cy + uniform(-spread, spread))});
      if (line.size() > 1 && whole(0, 1) == 0) line[1].y = line[0].y;  // horizontal
      if (line.size() > 2 && whole(0, 1) == 0) line[2].x = line[1].x;  // vertical
    }
    image.stroke(lines, static_cast<float>(width), black, static_cast<float>(alpha));
    for (int y = 0; y < high; ++y)
      for (int x = 0; x < wide; ++x) {
        double nearest = 1e9;
        for (const plot::Polyline& line : lines)
          for (std::size_t i = 0; i < line.size(); ++i)
            nearest = std::min(nearest, distance(x + 0.5, y + 0.5, line[i == 0 ? 0 : i - 1], line[i]));
        const double coverage = std::clamp(width / 2 + 0.5 - nearest, 0.0, std::min(width, 1.0));
        const double expected = 255 * (1 - coverage * alpha);
        ASSERT_NEAR(image.at(x, y).g, expected, 0.51) << trial << ": pixel " << x << ", " << y;
        ASSERT_EQ(image.at(x, y).r, image.at(x, y).b);
      }
  }
}

TEST(StrokeReference, FillIsClippedAndMixesEachColor) {
  for (int trial = 0; trial < 100; ++trial) {
    const Color below{200, 100, 7}, above{10, 150, 255};
    Image image(9, 7, below);
    const int x0 = whole(-3, 11), y0 = whole(-3, 9), x1 = whole(-3, 11), y1 = whole(-3, 9);
    const float alpha = std::vector<float>{0, 0.3f, 0.5f, 1}[static_cast<std::size_t>(whole(0, 3))];
    image.fill(x0, y0, x1, y1, above, alpha);
    for (int y = 0; y < 7; ++y)
      for (int x = 0; x < 9; ++x) {
        const float part = x >= x0 && x < x1 && y >= y0 && y < y1 ? alpha : 0;
        const auto mixed = [&](int a, int b) {
          return static_cast<std::uint8_t>(
              std::floor(static_cast<float>(a) + static_cast<float>(b - a) * part + 0.5f));
        };
        ASSERT_EQ(image.at(x, y), (Color{mixed(200, 10), mixed(100, 150), mixed(7, 255)})) << x << ", " << y;
      }
    for (int x = -2; x < 11; ++x)
      for (int y = -2; y < 9; ++y) {
        Image one(9, 7, below);
        one.set(x, y, above);
        int changed = 0;
        for (int i = 0; i < 63; ++i) changed += one.at(i % 9, i / 9) != below;
        const bool is_inside = x >= 0 && x < 9 && y >= 0 && y < 7;
        ASSERT_EQ(changed, is_inside ? 1 : 0) << x << ", " << y;
        if (is_inside) {
          ASSERT_EQ(one.at(x, y), above);
        }
        ASSERT_EQ(error_of([&] { one.at(x, y); }) == "no error", is_inside) << x << ", " << y;
      }
  }
}

TEST(StrokeReference, ImageSizesAreLimited) {
  constexpr int most = Image::most;
  for (const auto& [width, height, is_good] : {std::tuple(1, 1, true),
                                               {most, 1, true},
                                               {1, most, true},
                                               {0, 1, false},
                                               {1, 0, false},
                                               {-1, 1, false},
                                               {1, -1, false},
                                               {most + 1, 1, false},
                                               {1, most + 1, false}}) {
    EXPECT_EQ(error_of([&] { const Image image(width, height, white); }) == "no error", is_good)
        << width << " x " << height;
  }
  EXPECT_EQ(Image(5, 3, white).width(), 5);
  EXPECT_EQ(Image(5, 3, white).height(), 3);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(StrokeReference, APngWithoutEnoughMemoryIsAnError) {
  const Image image(2000, 2000, white);
  const pid_t child = ::fork();
  if (child == 0) {
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t most = pages * static_cast<rlim_t>(::getpagesize()) + (4 << 20);
    const rlimit limit{most, most};
    ::setrlimit(RLIMIT_AS, &limit);
    const std::string error = error_of([&] { image.png(); });
    ::_exit(error == "[image] no memory to compress 12000000 bytes" ? 7 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}
#endif

// ---- Axes

std::string signed_text(std::string s) {
  return s[0] == '-' ? "−" + s.substr(1) : s;
}
std::string power_text(int n) {
  const std::string digits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string s;
  for (int rest = std::abs(n); s.empty() || rest > 0; rest /= 10) s = digits[rest % 10] + s;
  return "10" + std::string(n < 0 ? "⁻" : "") + s;
}
std::string fixed(double x, int decimals) {
  char text[400];
  std::snprintf(text, sizeof text, "%.*f", decimals, x);
  return signed_text(text);
}
double power(int m, int n) {  // computes m · 10^n, rounded once
  return std::strtod((std::to_string(m) + "e" + std::to_string(n)).c_str(), nullptr);
}
int exponent(double x) {  // the largest n with 10^n ≤ x
  int n = static_cast<int>(std::log10(x)) + 2;
  while (power(1, n) > x * (1 + 1e-9)) --n;
  return n;
}

std::vector<plot::PlotTick> linear_ticks(double lo, double hi, int count) {
  int n = static_cast<int>(std::log10((hi - lo) / count)) - 2,
      m = 1;  // the smallest of 1, 2 or 5 · 10^n with at most `count` multiples in the range
  while (power(m, n) * count < (hi - lo) * (1 - 1e-9)) m = m == 5 ? (++n, 1) : m == 2 ? 5 : 2;
  const double step = power(m, n), largest = std::max(std::abs(lo), std::abs(hi));
  const bool is_scientific = largest > 999999.999 || largest < 0.001;
  const int at = exponent(largest);
  std::vector<plot::PlotTick> ticks;
  for (double i = std::ceil(lo / step - 1e-9); i <= hi / step + 1e-9; ++i) {
    const std::string label =
        i == 0          ? fixed(0, is_scientific || n > 0 ? 0 : -n)
        : is_scientific ? fixed(i * m * std::pow(10.0, n - at), std::max(0, at - n)) + "×" + power_text(at)
                        : fixed(i * step, std::max(0, -n));
    ticks.push_back({i * step, label});
  }
  return ticks;
}

std::vector<plot::PlotTick> log_ticks(double lo, double hi, int count) {
  const double decades = hi - lo;
  int every = 1;
  while (every * count < decades) ++every;
  const bool is_narrow = decades <= std::max(count, 6) / 3.0;
  std::vector<plot::PlotTick> ticks;
  for (int n = static_cast<int>(lo) - 2; n <= hi + 1; ++n)
    for (int m = 1; m <= 9; ++m) {
      const double at = n + std::log10(m);
      if (at < lo - 1e-9 || at > hi + 1e-9 || (every > 1 && m > 1)) continue;
      std::string label;
      if (is_narrow && (m == 1 || m == 2 || m == 5 || decades < 0.7))
        label = n >= -3 && n <= 4 ? fixed(power(m, n), std::max(0, -n))
                                  : (m == 1 ? "" : std::to_string(m) + "×") + power_text(n);
      else if (m == 1 && n % every == 0)
        label = power_text(n);
      ticks.push_back({power(m, n), label});
    }
  return ticks;
}

TEST(AxisReference, TicksAndLabelsMatchASearch) {
  for (int trial = 0; trial < 3000; ++trial) {
    const bool log = trial % 2 == 1;
    const int count = whole(2, 12);
    const double size = std::pow(10, uniform(-9, 9));
    double lo = log ? size : size * uniform(-1, 1), hi = lo + size * std::pow(10, uniform(-4, 0));
    if (log) hi = lo * std::pow(10, std::pow(uniform(0, 3), 3));
    if (!log && trial % 6 == 0) lo = std::round(lo), hi = lo + whole(1, 500);
    if (!log && trial % 10 == 0) lo = 0, hi = std::abs(hi);
    if (!log && trial % 14 == 0) hi = std::abs(hi), lo = -hi;
    const plot::PlotAxis axis = plot::make_plot_axis(lo, hi, log, count);
    EXPECT_EQ(axis.log, log);
    const auto expected = log ? log_ticks(axis.lo, axis.hi, count) : linear_ticks(axis.lo, axis.hi, count);
    ASSERT_EQ(axis.ticks.size(), expected.size()) << lo << " to " << hi << (log ? " log " : " ") << count;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(axis.ticks[i].value, expected[i].value, 1e-12 * std::abs(expected[i].value));
      EXPECT_EQ(axis.ticks[i].label, expected[i].label)
          << lo << " to " << hi << (log ? " log " : " ") << count;
      const double value = log ? std::log10(expected[i].value) : expected[i].value;
      EXPECT_NEAR(axis.place(expected[i].value), (value - axis.lo) / (axis.hi - axis.lo), 1e-9);
    }
  }
}

// Tests values just below and just above each limit: for flat axes, scientific labels and decimals.
TEST(AxisReference, LimitsAreExact) {
  const auto ends = [](double lo, double hi, bool log) {
    const plot::PlotAxis axis = plot::make_plot_axis(lo, hi, log, 5);
    return std::pair(axis.lo, axis.hi);
  };
  EXPECT_EQ(ends(0, 1.1e-290, false).second, 1.1e-290 + 0.04 * 1.1e-290);
  EXPECT_EQ(ends(0, 0.9e-290, false).second, 0.9e-290 + 1);
  EXPECT_EQ(ends(1e-290, 1.9e-290, false).second, 1.9e-290 + 0.1 * 1.9e-290);
  EXPECT_LT(ends(1e6, 1e6 + 1.1e-6, false).second, 1e6 + 1.2e-6);
  EXPECT_EQ(ends(1e6, 1e6 + 0.9e-6, false).second, 1e6 + 0.9e-6 + 0.1 * (1e6 + 0.9e-6));
  EXPECT_EQ(ends(-2, -2, false), std::pair(-2.2, -1.8));
  EXPECT_EQ(ends(10, 10, true), std::pair(0.5, 1.5));
  const auto last = [](double hi) { return plot::make_plot_axis(0, hi / 1.04, false, 5).ticks.back().label; };
  EXPECT_EQ(last(999999.9), "500000");
  EXPECT_EQ(last(1000000.1), "1.0×10⁶");
  EXPECT_EQ(last(0.0010001), "0.0010");
  EXPECT_EQ(last(0.00099999), "5×10⁻⁴");
}

// ---- Means

TEST(SmoothedReference, MatchesTheMeanOfAWindow) {
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> y(static_cast<std::size_t>(whole(0, 14)));
    for (double& v : y) v = whole(0, 4) == 0 ? NAN : uniform(-5, 5);
    const int half = whole(0, 8), n = static_cast<int>(y.size());
    const std::vector<double> got = plot::smoothed(y, half);
    ASSERT_EQ(got.size(), y.size());
    for (int i = 0; i < n; ++i) {
      double sum = 0;
      int count = 0;
      for (int k = 0; k < n; ++k) {
        const double value = y[static_cast<std::size_t>(k)];
        // Backward, the window ends at the start. Forward, it is at most as long as backward.
        if (std::abs(k - i) <= std::min(half, i) && std::isfinite(value)) sum += value, ++count;
      }
      const double mean = got[static_cast<std::size_t>(i)];
      if (std::isfinite(y[static_cast<std::size_t>(i)]))
        EXPECT_NEAR(mean, sum / count, 1e-12) << trial << ", " << i;
      else
        EXPECT_TRUE(std::isnan(mean)) << trial << ", " << i;
    }
  }
  EXPECT_TRUE(std::isinf(plot::smoothed({1, INFINITY, 2}, 1)[1]));
}

// ---- Heat maps

TEST(HeatMapReference, ShadesInterpolateBetweenTheirStops) {
  const struct {
    float value;
    Color shade;
  } expected[] = {{0, {255, 255, 255}},         {0.01f, {229, 239, 248}},   {0.0625f, {190, 216, 238}},
                  {0.140625f, {141, 187, 223}}, {0.25f, {92, 158, 208}},    {0.390625f, {57, 123, 184}},
                  {0.5625f, {22, 88, 160}},     {0.765625f, {14, 57, 116}}, {1, {6, 26, 72}}};
  for (const auto& e : expected) EXPECT_EQ(plot::heat_color(e.value), e.shade) << e.value;
}

// If there are more cells than pixels, a pixel shows the largest of its cells. Otherwise, a cell is a square.
TEST(HeatMapReference, PixelsShowTheirCells) {
  const struct {
    std::int64_t rows, columns, across;
    int high, wide;  // the size of all cells in pixels
  } sizes[] = {{200, 170, 12, 150, 150}, {150, 155, 12, 150, 150}, {149, 150, 12, 149, 150},
               {75, 20, 12, 150, 40},    {30, 1000, 2, 30, 760},   {2, 3, 1, 80, 120}};
  for (const auto& s : sizes) {
    plot::HeatMaps h{.rows = s.rows, .columns = s.columns, .across = s.across, .maps = {{"", {}}}};
    for (std::int64_t i = 0; i < s.rows * s.columns; ++i)
      h.maps[0].values.push_back(static_cast<float>(uniform(0, 1) * uniform(0, 1)));
    const Image image = plot::draw_heat_maps(h);
    // Finds the cells of each pixel.
    const auto cells = [](int pixels, std::int64_t count) {
      std::vector<std::vector<std::int64_t>> all(static_cast<std::size_t>(pixels));
      for (int p = 0; p < pixels; ++p)
        for (std::int64_t c = 0; c < count; ++c)
          if (count > pixels ? (c + 1) * pixels > p * count && (c + 1) * pixels <= (p + 1) * count
                             : c == p * count / pixels)
            all[static_cast<std::size_t>(p)].push_back(c);
      return all;
    };
    const auto rows = cells(s.high, s.rows), columns = cells(s.wide, s.columns);
    for (int y = 2; y < s.high - 2; ++y)  // inside the frame
      for (int x = 2; x < s.wide - 2; ++x) {
        float largest = 0;
        for (const std::int64_t r : rows[static_cast<std::size_t>(y)])
          for (const std::int64_t c : columns[static_cast<std::size_t>(x)])
            largest = std::max(largest, h.maps[0].values[static_cast<std::size_t>(r * s.columns + c)]);
        ASSERT_EQ(image.at(70 + x, 90 + 36 + y), plot::heat_color(largest))
            << s.rows << " x " << s.columns << ": pixel " << x << ", " << y;
      }
    EXPECT_EQ(image.height(), 90 + 36 + s.high + 26 + 120) << s.rows;
    EXPECT_EQ(image.width(), std::max<std::int64_t>(900, 70 + s.across * (s.wide + 26) + 26)) << s.columns;
  }
}

// Tests sizes at the limits of the rules. All cells of a map together have 150 to 760 pixels, and each cell
// has at most 40 pixels. Names need cells of at least 11 pixels. Cells become larger to fit names if all maps
// together then have at most 3600 pixels.
TEST(HeatMapReference, PicturesHaveTheseSizes) {
  const struct {
    std::int64_t rows, columns, across;
    bool is_named;
    int width, height;
  } sizes[] = {{3, 4, 1, false, 900, 392},     {2, 15, 3, false, 1974, 352},  {2, 16, 3, false, 1950, 346},
               {1, 19, 2, false, 1668, 312},   {1, 20, 2, false, 1668, 310},  {19, 1, 1, false, 900, 1032},
               {20, 1, 1, false, 900, 1032},   {760, 1, 1, false, 900, 1032}, {761, 1, 2, false, 900, 1032},
               {1, 761, 2, false, 1668, 273},  {601, 3, 3, false, 900, 872},  {1, 150, 12, false, 2208, 273},
               {4, 151, 12, false, 2208, 276}, {151, 5, 13, false, 900, 422}, {3, 4, 1, true, 900, 428},
               {1, 251, 1, true, 3646, 316},   {1, 252, 1, true, 900, 275},   {251, 1, 1, true, 900, 3816},
               {1, 122, 2, true, 3584, 316},   {1, 123, 2, true, 1624, 278},  {1, 80, 3, true, 3564, 316},
               {1, 81, 3, true, 1875, 279},    {1, 13, 20, true, 3676, 308},  {1, 14, 20, true, 3416, 282},
               {7, 1, 20, true, 1236, 455},    {8, 1, 20, true, 1176, 451},   {1, 15, 12, true, 3048, 316},
               {1, 16, 12, true, 2136, 281}};
  for (const auto& s : sizes) {
    plot::HeatMaps h{.rows = s.rows, .columns = s.columns, .across = s.across, .maps = {{"", {}}}};
    h.maps[0].values.resize(static_cast<std::size_t>(s.rows * s.columns));
    if (s.is_named) {
      h.row_names.resize(static_cast<std::size_t>(s.rows));  // empty names also fit
      h.column_names.resize(static_cast<std::size_t>(s.columns));
    }
    const Image image = plot::draw_heat_maps(h);
    EXPECT_EQ(image.width(), s.width) << s.rows << " x " << s.columns << ", " << s.across;
    EXPECT_EQ(image.height(), s.height) << s.rows << " x " << s.columns << ", " << s.across;
  }
}

// Column names are horizontal if any two neighboring names together are narrower than 1.8 cells of 40 pixels.
TEST(HeatMapReference, NamesAreVerticalIfTwoNeighborsTouch) {
  const auto width = [](const std::string& name) { return plot::stroke_text(name, 20).width; };
  const auto room = [](const std::vector<std::string>& names) {  // space for names below a map
    plot::HeatMaps h{.rows = 1, .columns = std::ssize(names), .column_names = names, .maps = {{"", {}}}};
    h.maps[0].values.resize(names.size());
    return plot::draw_heat_maps(h).height() - (90 + 36 + 40 + 26 + 120);
  };
  // Tests the widest pair that fits and the narrowest pair that does not.
  std::pair<std::string, std::string> inside, outside;
  float widest_inside = 0, narrowest_outside = 1e9f;
  for (std::size_t n = 1; n <= 12; ++n)
    for (std::size_t m = 1; m <= 12; ++m) {
      const std::string a(n, 'l'), b(m, '.');
      const float both = width(a) + width(b);
      if (both < 72 && both > widest_inside) widest_inside = both, inside = {a, b};
      if (both >= 72 && both < narrowest_outside) narrowest_outside = both, outside = {a, b};
    }
  EXPECT_GT(widest_inside, 71.5);
  EXPECT_LT(narrowest_outside, 72.5);
  for (const auto& [a, b] : {inside, outside, std::pair<std::string, std::string>("a", "quite long")})
    for (const bool is_first : {true, false})
      for (std::size_t at = 0; at < 3; ++at) {
        std::vector<std::string> names(4, "");
        names[at] = is_first ? a : b, names[at + 1] = is_first ? b : a;
        const float below = width(a) + width(b) < 72 ? 26 : std::max(width(a), width(b));
        EXPECT_EQ(room(names), static_cast<int>(below) + 10) << a << ", " << b << ", " << at;
      }
  // If cells have 11 pixels, names have the size 1.1 · 11.
  plot::HeatMaps h{.rows = 1, .columns = 13, .across = 20, .maps = {{"", std::vector<float>(13)}}};
  h.column_names.assign(13, "a name that is long");
  EXPECT_EQ(plot::draw_heat_maps(h).height() - (90 + 36 + 11 + 26 + 120),
            static_cast<int>(plot::stroke_text(h.column_names[0], 12.1f).width) + 10);
}

TEST(HeatMapReference, SizesBeyondTheLimitsAreRefused) {
  constexpr std::int64_t most = Image::most;
  const auto error = [](std::int64_t rows, std::int64_t columns, std::int64_t across, std::size_t values) {
    return error_of([&] {
      plot::draw_heat_maps(
          {.rows = rows, .columns = columns, .across = across, .maps = {{"m", std::vector<float>(values)}}});
    });
  };
  EXPECT_EQ(error(most, 1, 1, most), "no error");
  EXPECT_EQ(error(1, most, 1, most), "no error");
  for (const auto& [rows, columns, across] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>(0, 1, 1),
                                              {1, 0, 1},
                                              {1, 1, 0},
                                              {most + 1, 1, 1},
                                              {1, most + 1, 1},
                                              {1, 1, most + 1}})
    EXPECT_NE(
        error(rows, columns, across, static_cast<std::size_t>(rows * columns)).find("expected 1 to 16384"),
        std::string::npos)
        << rows << ", " << columns << ", " << across;
  for (const std::size_t values : {5, 7})
    EXPECT_EQ(error(2, 3, 1, values),
              "[heat map] \"m\" has " + std::to_string(values) + " values, expected 2 x 3");
}

}  // namespace
