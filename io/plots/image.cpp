// Implements the canvas. The coverage of a pixel by a stroke is computed from its distance to the stroke's
// center line.
#include <tilegrad/io/plots/image.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include "io/plots/plot_parts.h"

#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STB_IMAGE_WRITE_STATIC
#define STBI_WRITE_NO_STDIO
#include <stb/stb_image_write.h>

namespace tg::plot {
namespace {

void check_alpha(float alpha) {
  if (!(alpha >= 0 && alpha <= 1))
    throw Error("[image] got alpha " + std::to_string(alpha) + ", expected 0 to 1");
}

template <class T>
std::vector<T> zeros(std::size_t count) try {
  return std::vector<T>(count);
} catch (const std::bad_alloc&) {
  throw OutOfMemory("[image] no memory for " + std::to_string(count * sizeof(T)) + " bytes");
}

}  // namespace

Image::Image(int width, int height, Color background) : width_(width), height_(height) {
  if (width < 1 || height < 1 || width > most || height > most) {
    throw Error("[image] got " + std::to_string(width) + " x " + std::to_string(height) +
                " pixels, expected 1 to " + std::to_string(most) + " each way");
  }
  pixels_ = zeros<std::uint8_t>(std::size_t(width) * std::size_t(height) * 3);
  fill(0, 0, width, height, background);
}

Color Image::at(int x, int y) const {
  if (x < 0 || y < 0 || x >= width_ || y >= height_) {
    throw Error("[image] got pixel (" + std::to_string(x) + ", " + std::to_string(y) + ") of an image of " +
                std::to_string(width_) + " x " + std::to_string(height_));
  }
  const std::uint8_t* p = pixels_.data() + (std::size_t(y) * std::size_t(width_) + std::size_t(x)) * 3;
  return {p[0], p[1], p[2]};
}

void Image::set(int x, int y, Color color) {
  if (x >= 0 && y >= 0 && x < width_ && y < height_) blend(x, y, color, 1);
}

void Image::blend(int x, int y, Color color, float alpha) {
  std::uint8_t* p = pixels_.data() + (std::size_t(y) * std::size_t(width_) + std::size_t(x)) * 3;
  const std::uint8_t c[] = {color.r, color.g, color.b};
  for (int i = 0; i < 3; ++i) {
    p[i] = static_cast<std::uint8_t>(float(p[i]) + (float(c[i]) - float(p[i])) * alpha + 0.5f);
  }
}

void Image::fill(int x0, int y0, int x1, int y1, Color color, float alpha) {
  check_alpha(alpha);
  x0 = std::max(x0, 0), y0 = std::max(y0, 0), x1 = std::min(x1, width_), y1 = std::min(y1, height_);
  for (int y = y0; y < y1; ++y) {
    for (int x = x0; x < x1; ++x) blend(x, y, color, alpha);
  }
}

void Image::stroke(std::span<const Polyline> lines, float width, Color color, float alpha) {
  check_alpha(alpha);
  const float reach = width / 2 + 0.5f;  // coverage falls from 1 to 0 across the pixel at the edge
  float left = std::numeric_limits<float>::max(), top = left, right = -left, bottom = -left;
  for (const Polyline& line : lines) {
    for (const Point p : line) {
      left = std::min(left, p.x), right = std::max(right, p.x);
      top = std::min(top, p.y), bottom = std::max(bottom, p.y);
    }
  }
  const auto clipped = [](float v, int most) {  // NaN is 0
    return v > 0 ? static_cast<int>(std::min(v, float(most))) : 0;
  };
  const auto column = [&](float x) { return clipped(x, width_); };
  const auto row = [&](float y) { return clipped(y, height_); };
  const int x0 = column(left - reach), x1 = column(right + reach + 1);
  const int y0 = row(top - reach), y1 = row(bottom + reach + 1);
  if (x0 >= x1 || y0 >= y1 || !(width > 0)) return;
  const auto columns = std::size_t(x1 - x0);
  std::vector<float> coverage = zeros<float>(columns * std::size_t(y1 - y0));  // [y1 − y0, x1 − x0]

  const auto segment = [&](Point a, Point b) {
    const float dx = b.x - a.x, dy = b.y - a.y, squared = dx * dx + dy * dy;
    const int first = std::max(y0, row(std::min(a.y, b.y) - reach));
    const int last = std::min(y1, row(std::max(a.y, b.y) + reach + 1));
    for (int y = first; y < last; ++y) {
      // Only the part of the segment that is near this row can cover its pixels.
      float from = std::min(a.x, b.x), to = std::max(a.x, b.x);
      if (std::abs(dy) > 1e-3f) {
        const float u = a.x + (float(y) - reach - a.y) / dy * dx,
                    v = a.x + (float(y) + 1 + reach - a.y) / dy * dx;
        from = std::max(from, std::min(u, v)), to = std::min(to, std::max(u, v));
      }
      const int begin = std::max(x0, column(from - reach)), end = std::min(x1, column(to + reach + 1));
      for (int x = begin; x < end; ++x) {
        const float px = float(x) + 0.5f - a.x, py = float(y) + 0.5f - a.y;
        const float t = squared > 0 ? std::clamp((px * dx + py * dy) / squared, 0.0f, 1.0f) : 0.0f;
        const float distance = std::hypot(px - t * dx, py - t * dy);
        float& c = coverage[std::size_t(y - y0) * columns + std::size_t(x - x0)];
        c = std::max(c, std::min({reach - distance, width, 1.0f}));
      }
    }
  };
  for (const Polyline& line : lines) {
    if (line.size() == 1) segment(line[0], line[0]);
    for (std::size_t i = 1; i < line.size(); ++i) segment(line[i - 1], line[i]);
  }
  for (int y = y0; y < y1; ++y) {
    for (int x = x0; x < x1; ++x) {
      const float c = coverage[std::size_t(y - y0) * columns + std::size_t(x - x0)];
      if (c > 0) blend(x, y, color, c * alpha);
    }
  }
}

void Image::line(Point a, Point b, float width, Color color, float alpha) {
  const Polyline both{a, b};
  stroke(std::span(&both, 1), width, color, alpha);
}

void Image::disc(Point center, float radius, Color color) {
  line(center, center, 2 * radius, color);
}

void Image::text(Point anchor, std::string_view utf8, const TextStyle& style) {
  StrokedText text = stroke_text(utf8, style.size);
  const float shift = style.align == TextStyle::Align::left    ? 0
                      : style.align == TextStyle::Align::right ? text.width
                                                               : text.width / 2;
  for (Polyline& line : text.lines) {
    for (Point& p : line) {
      const float along = p.x - shift, up = p.y;
      p = style.upwards ? Point{anchor.x - up, anchor.y - along} : Point{anchor.x + along, anchor.y - up};
    }
  }
  stroke(text.lines, std::max(1.0f, style.size * stroke_width * style.weight), style.color);
}

std::string Image::png() const {
  std::string file;
  const auto append = [](void* to, void* data, int size) {
    static_cast<std::string*>(to)->append(static_cast<const char*>(data), static_cast<std::size_t>(size));
  };
  if (stbi_write_png_to_func(append, &file, width_, height_, 3, pixels_.data(), width_ * 3) == 0) {
    throw OutOfMemory("[image] no memory to compress " + std::to_string(pixels_.size()) + " bytes");
  }
  return file;
}

void Image::save_png(const std::string& path) const {
  const std::string file = png();
  const std::string_view piece = file;
  io::replace_file(path, std::span(&piece, 1), "save_png");
}

}  // namespace tg::plot
