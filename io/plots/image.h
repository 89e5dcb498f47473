// An RGB canvas with anti-aliased strokes and text, saved as PNG. Coordinates are pixels from the upper left
// corner, y downwards; the centre of pixel (0, 0) is (0.5, 0.5).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tg::plot {

struct Color {
  std::uint8_t r = 0, g = 0, b = 0;
  bool operator==(const Color&) const = default;
};

struct Point {
  float x = 0, y = 0;
};
using Polyline = std::vector<Point>;

// How draw_text places a text. Its anchor is a point on the baseline at the left, middle or right of the
// text.
struct TextStyle {
  enum class Align { left, center, right };
  float size = 20;  // pixels of a line of text; capitals are 0.7 of it high
  Color color{};
  Align align = Align::left;
  bool upwards = false;  // rotated by 90°, to be read from bottom to top
  float weight = 1;      // of the strokes; 1.5 is bold
};

class Image {
 public:
  static constexpr int most = 16384;               // pixels each way
  Image(int width, int height, Color background);  // Error unless both are 1 to `most`

  int width() const { return width_; }
  int height() const { return height_; }
  Color at(int x, int y) const;         // inside the image only, or Error
  void set(int x, int y, Color color);  // outside: nothing

  // `alpha`, how much of the colour covers what is there: 0 to 1, else Error.
  // The rectangle [x0, x1) × [y0, y1), in whole pixels, clipped to the image.
  void fill(int x0, int y0, int x1, int y1, Color color, float alpha = 1);
  // The lines with round ends and joins, painted once: where they cross or overlap they are no darker.
  void stroke(std::span<const Polyline> lines, float width, Color color, float alpha = 1);
  void line(Point a, Point b, float width, Color color, float alpha = 1);
  void disc(Point center, float radius, Color color);
  void text(Point anchor, std::string_view utf8, const TextStyle& style);

  std::string png() const;  // a PNG file's bytes
  void save_png(
      const std::string& path) const;  // replaces the file atomically; Error if it cannot be written

 private:
  void blend(int x, int y, Color color, float alpha);

  int width_, height_;
  std::vector<std::uint8_t> pixels_;  // [height, width, 3]
};

}  // namespace tg::plot
