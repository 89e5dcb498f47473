// An RGB canvas with anti-aliased strokes and text, saved as PNG. Coordinates are pixels from the upper left
// corner, y downwards. The center of pixel (0, 0) is (0.5, 0.5).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tg::plot {

// An sRGB color.
struct Color {
  std::uint8_t r = 0, g = 0, b = 0;  // red, green, blue
  // Whether all three components are equal.
  bool operator==(const Color&) const = default;
};

// A point in pixel coordinates.
struct Point {
  float x = 0, y = 0;  // right and down from the upper left corner
};
// Points that are connected by straight lines.
using Polyline = std::vector<Point>;

// The style of a text. Its anchor is a point on the baseline, at the left, middle or right of the text.
struct TextStyle {
  // The position of the anchor along the baseline.
  enum class Align {
    left,    // at the beginning of the text
    center,  // in the middle of the text
    right    // at the end of the text
  };
  float size = 20;            // height of a line in pixels; capital letters are 0.7 times as high
  Color color{};              // black by default
  Align align = Align::left;  // where the anchor is
  bool upwards = false;       // rotated by 90°, to be read from bottom to top
  float weight = 1;           // stroke width relative to regular text; 1.5 is bold
};

// The canvas.
class Image {
 public:
  // Maximum width and height in pixels.
  static constexpr int most = 16384;
  // Creates a canvas filled with `background`. Throws Error unless both sizes are 1 to `most`, and
  // OutOfMemory if there is no memory for it.
  Image(int width, int height, Color background);

  // Width in pixels.
  int width() const { return width_; }
  // Height in pixels.
  int height() const { return height_; }
  // Returns the color of a pixel. Throws Error outside the image.
  Color at(int x, int y) const;
  // Sets a pixel. Does nothing outside the image.
  void set(int x, int y, Color color);

  // Fills the rectangle [x0, x1) × [y0, y1), in whole pixels, clipped to the image. Here and below, `alpha`
  // is the opacity of the color. Throws Error unless `alpha` is 0 to 1.
  void fill(int x0, int y0, int x1, int y1, Color color, float alpha = 1);
  // Draws lines with round ends and joins. They are blended once, so that crossings and overlaps are not
  // darker.
  void stroke(std::span<const Polyline> lines, float width, Color color, float alpha = 1);
  // Draws one straight line, as stroke() does.
  void line(Point a, Point b, float width, Color color, float alpha = 1);
  // Draws a filled disc.
  void disc(Point center, float radius, Color color);
  // Draws UTF-8 text.
  void text(Point anchor, std::string_view utf8, const TextStyle& style);

  // Returns the content of a PNG file.
  std::string png() const;
  // Writes a PNG file and replaces an existing one atomically. Throws Error if it cannot be written.
  void save_png(const std::string& path) const;

 private:
  void blend(int x, int y, Color color, float alpha);

  int width_, height_;
  std::vector<std::uint8_t> pixels_;  // [height, width, 3]
};

}  // namespace tg::plot
