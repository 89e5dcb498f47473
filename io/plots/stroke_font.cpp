// The glyphs and their layout. A glyph is a path on a grid: the baseline is at 0, small letters reach 14,
// capital letters 20 and descenders −6. Path commands:
// - L x y x y …: straight lines through the points.
// - A cx cy rx ry a b: the arc of an ellipse from angle a to angle b, in degrees, counter-clockwise if b > a.
// - ; lifts the pen.
//
// The end of a command is connected to the start of the next command by a line.
#include "io/plots/plot_parts.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numbers>

#include "io/files/utf8.h"

namespace tg::plot {
namespace {

struct Glyph {
  char32_t character;
  const char* path;
};

constexpr char32_t missing = U'\uffff';  // drawn as a box
constexpr float unit = 0.7f / 20;        // as a fraction of the size
constexpr float bearing = 2.6f;          // space on either side
constexpr float space_width = 7.0f;
constexpr float digit_width = 12.0f;  // equal for all digits, so that numbers align
constexpr float raised = 0.62f;       // size of a superscript
constexpr float raised_by = 9.5f;     // height above the baseline

constexpr Glyph glyphs[] = {
    {U'!', "L0 20 0 6;A0 .4 .4 .4 0 360"},
    {U'"', "L0 20 0 14.5;L4.5 20 4.5 14.5"},
    {U'#', "L3 1 6.5 19;L9 1 12.5 19;L0.5 13 15.5 13;L0 7 15 7"},
    {U'$', "A6.5 14.5 5.5 4.5 25 270 A6.5 5.5 6 4.5 90 -155;L6.5 22 6.5 -2"},
    {U'%', "A3.7 15.5 3.7 4.5 0 360;A14.3 4.5 3.7 4.5 0 360;L3.5 0 14.5 20"},
    {U'&', "L14.5 0 3.4 13.2 A6.6 15.9 4.1 4.1 221 -48 L2.4 9.4 A5.6 5.3 5.6 5.3 128 315 L14.5 9.5"},
    {U'\'', "L0 20 0 14.5"},
    {U'(', "A9.5 8.5 9.5 15 125 235"},
    {U')', "A-4 8.5 9.5 15 55 -55"},
    {U'*', "L5 20 5 10;L.7 17.5 9.3 12.5;L.7 12.5 9.3 17.5"},
    {U'+', "L0 9 12 9;L6 15 6 3"},
    {U',', "L1.4 .8 0 -3.6"},
    {U'-', "L0 8 7 8"},
    {U'.', "A0 .4 .4 .4 0 360"},
    {U'/', "L0 -2 8.5 21"},
    {U'0', "A6 14 6 6 0 180 L0 6 A6 6 6 6 180 360 L12 14"},
    {U'1', "L2 15.5 7 20 7 0"},
    {U'2', "A6 14 6 6 165 -38 L0 0 12 0"},
    {U'3', "A6 15.1 5.2 4.9 155 -90 L4 10.2 6 10.2 A6 5.1 6 5.1 90 -155"},
    {U'4', "L9 0 9 20 0 5.5 12 5.5"},
    {U'5', "L10.8 20 1.8 20 .9 10.6 A6 6.4 6 6.4 138 -148"},
    {U'6', "L9.2 20 .9 9.2 A6 6 6 6 148 508"},
    {U'7', "L0 20 12 20 4 0"},
    {U'8', "A6 15.3 5.1 4.7 -90 270 A6 5.3 6 5.3 90 450"},
    {U'9', "L2.8 0 11.1 10.8 A6 14 6 6 -32 328"},
    {U':', "A0 .4 .4 .4 0 360;A0 11 .4 .4 0 360"},
    {U';', "L1.4 .8 0 -3.6;A1.4 11 .4 .4 0 360"},
    {U'<', "L11 15 0 9 11 3"},
    {U'=', "L0 12 12 12;L0 6 12 6"},
    {U'>', "L0 15 11 9 0 3"},
    {U'?', "A5 15 5 5 165 -48 L5 8.5 5 6;A5 .4 .4 .4 0 360"},
    {U'@', "A9.5 8 4 4.6 0 360;L13.5 12.6 13.5 6.2 A16 6.2 2.5 2.9 180 360 L18.5 8.5 A9.3 8.5 9.2 10 0 312"},
    {U'A', "L0 0 8 20 16 0;L2.8 7 13.2 7"},
    {U'B', "L0 10.5 7.5 10.5 A7.5 5.25 5.5 5.25 90 -90 L0 0 0 20 7 20 A7 15.25 4.9 4.75 90 -90"},
    {U'C', "A7.5 12.5 7.5 7.5 35 180 L0 7.5 A7.5 7.5 7.5 7.5 180 325"},
    {U'D', "L0 0 0 20 6 20 A6 12 8.5 8 90 0 L14.5 8 A6 8 8.5 8 0 -90 L0 0"},
    {U'E', "L11 20 0 20 0 0 11 0;L0 10.4 9.3 10.4"},
    {U'F', "L11 20 0 20 0 0;L0 10 9.3 10"},
    {U'G', "A7.5 12.5 7.5 7.5 35 180 L0 7.5 A7.5 7.5 7.5 7.5 180 360 L15 9.6 8.6 9.6"},
    {U'H', "L0 0 0 20;L14 0 14 20;L0 10.4 14 10.4"},
    {U'I', "L0 0 0 20"},
    {U'J', "L9 20 9 5 A4.5 5 4.5 5 0 -155"},
    {U'K', "L0 0 0 20;L12.5 20 0 7.8;L4.6 12.3 13.2 0"},
    {U'L', "L0 20 0 0 10.5 0"},
    {U'M', "L0 0 0 20 8.5 6.5 17 20 17 0"},
    {U'N', "L0 0 0 20 14 0 14 20"},
    {U'O', "A7.75 12.5 7.75 7.5 0 180 L0 7.5 A7.75 7.5 7.75 7.5 180 360 L15.5 12.5"},
    {U'P', "L0 0 0 20 7.2 20 A7.2 14.4 5.6 5.6 90 -90 L0 8.8"},
    {U'Q', "A7.75 12.5 7.75 7.5 0 180 L0 7.5 A7.75 7.5 7.75 7.5 180 360 L15.5 12.5;L9.3 5 15.5 -1.4"},
    {U'R', "L0 0 0 20 7.2 20 A7.2 14.6 5.4 5.4 90 -90 L0 9.2;L7 9.2 13 0"},
    {U'S', "A6.6 15.1 5.8 4.9 28 270 A6.6 5.1 6.5 5.1 90 -155"},
    {U'T', "L0 20 14 20;L7 20 7 0"},
    {U'U', "L0 20 0 7 A7 7 7 7 180 360 L14 20"},
    {U'V', "L0 20 8 0 16 20"},
    {U'W', "L0 20 5.5 0 11.2 18 16.9 0 22.4 20"},
    {U'X', "L0 20 14 0;L0 0 14 20"},
    {U'Y', "L0 20 7.5 9.5 15 20;L7.5 9.5 7.5 0"},
    {U'Z', "L0 20 13 20 0 0 13 0"},
    {U'[', "L5 21 0 21 0 -4 5 -4"},
    {U'\\', "L0 21 8.5 -2"},
    {U']', "L0 21 5 21 5 -4 0 -4"},
    {U'^', "L0 13 5 20 10 13"},
    {U'_', "L0 -4 12 -4"},
    {U'`', "L0 20 3.5 16"},
    {U'a', "A5.2 9.2 4.8 4.8 155 0 L10 0;L10 8 4.3 8 A4.3 4 4.3 4 90 270 A4.6 5.4 5.4 5.4 270 360"},
    {U'b', "L0 20 0 0;A5.5 8.5 5.5 5.5 180 0 L11 5.5 A5.5 5.5 5.5 5.5 0 -180"},
    {U'c', "A5.4 8.5 5.4 5.5 38 180 L0 5.5 A5.4 5.5 5.4 5.5 180 322"},
    {U'd', "L11 20 11 0;A5.5 8.5 5.5 5.5 0 180 L0 5.5 A5.5 5.5 5.5 5.5 180 360"},
    {U'e', "L0 7.2 11 7.2 L11 8.5 A5.5 8.5 5.5 5.5 0 180 L0 5.5 A5.5 5.5 5.5 5.5 180 318"},
    {U'f', "L3 0 3 15.8 A7.2 15.8 4.2 4.2 180 85;L0 13 7.4 13"},
    {U'g', "A5.5 8.5 5.5 5.5 0 180 L0 5.5 A5.5 5.5 5.5 5.5 180 360;L11 14 11 -1.2 A5.8 -1.2 5.2 4.8 0 -145"},
    {U'h', "L0 20 0 0;A5 9 5 5 180 0 L10 0"},
    {U'i', "L0 14 0 0;A0 19 .4 .4 0 360"},
    {U'j', "L3.5 14 3.5 -2.4 A0 -2.4 3.5 3.6 0 -95;A3.5 19 .4 .4 0 360"},
    {U'k', "L0 20 0 0;L9 14 0 5.5;L3.4 8.7 9.8 0"},
    {U'l', "L0 20 0 3.2 A3.2 3.2 3.2 3.2 180 275"},
    {U'm', "L0 14 0 0;A4.3 9.7 4.3 4.3 180 0 L8.6 0;A12.9 9.7 4.3 4.3 180 0 L17.2 0"},
    {U'n', "L0 14 0 0;A5 9 5 5 180 0 L10 0"},
    {U'o', "A5.6 8.5 5.6 5.5 0 180 L0 5.5 A5.6 5.5 5.6 5.5 180 360 L11.2 8.5"},
    {U'p', "L0 14 0 -6;A5.5 8.5 5.5 5.5 180 0 L11 5.5 A5.5 5.5 5.5 5.5 0 -180"},
    {U'q', "L11 14 11 -6;A5.5 8.5 5.5 5.5 0 180 L0 5.5 A5.5 5.5 5.5 5.5 180 360"},
    {U'r', "L0 14 0 0;A5 9 5 5 180 72"},
    {U's', "A4.7 10.6 4.4 3.4 28 270 A4.7 3.6 4.9 3.6 90 -155"},
    {U't', "L3 19 3 4 A7 4 4 4 180 282;L0 13.5 7.4 13.5"},
    {U'u', "L0 14 0 5 A5 5 5 5 180 360;L10 14 10 0"},
    {U'v', "L0 14 5.5 0 11 14"},
    {U'w', "L0 14 4 0 8.2 12.5 12.4 0 16.4 14"},
    {U'x', "L0 14 10 0;L0 0 10 14"},
    {U'y', "L0 14 5.5 0;L11 14 3.1 -6"},
    {U'z', "L0 14 10 14 0 0 10 0"},
    {U'{',
     "L6 21 5.5 21 A5.5 18 3 3 90 180 L2.5 11.5 A-.5 11.5 3 3 0 -90 A-.5 5.5 3 3 90 0 L2.5 -1 A5.5 -1 3 3 "
     "180 270 L6 -4"},
    {U'|', "L0 21 0 -4"},
    {U'}',
     "L0 21 .5 21 A.5 18 3 3 90 0 L3.5 11.5 A6.5 11.5 3 3 180 270 A6.5 5.5 3 3 90 180 L3.5 -1 A.5 -1 3 3 0 "
     "-90 L0 -4"},
    {U'~', "A3.2 8 3.2 2.6 165 20 A9.3 9.8 3.2 2.6 200 345"},
    {U'°', "A3 17 3 3 0 360"},
    {U'±', "L0 11 12 11;L6 17 6 5;L0 1 12 1"},
    {U'·', "A0 8 .5 .5 0 360"},
    {U'×', "L0 4 10 14;L0 14 10 4"},
    {U'µ', "L0 14 0 -6;L0 5 A5 5 5 5 180 360;L10 14 10 0"},
    {U'μ', "L0 14 0 -6;L0 5 A5 5 5 5 180 360;L10 14 10 0"},
    {U'ξ', "L1 20 9 20;A6 16.3 4.6 3.6 110 255 L8 12.8;A6 7.6 6 5.2 115 260 A6.4 -1 4 3.4 90 -60"},
    {U'–', "L0 8 12 8"},
    {U'—', "L0 8 20 8"},
    {U'−', "L0 9 12 9"},
    {U'√', "L0 9 2.5 10.5 6 0 12 22 18 22"},
    {U'∞', "A4.4 8 4.4 4 45 315 L12.6 10.8 A15.7 8 4.4 4 135 -135 L7.5 10.8"},
    {U'≈', "A3.2 11 3.2 2.4 165 20 A9.3 12.6 3.2 2.4 200 345;A3.2 5 3.2 2.4 165 20 A9.3 6.6 3.2 2.4 200 345"},
    {U'≤', "L11 17 0 11.5 11 6;L0 1 11 1"},
    {U'≥', "L0 17 11 11.5 0 6;L0 1 11 1"},
};

// Appends a glyph's lines in grid units, shifted to begin at x = bearing. Returns the advance width.
float trace(char32_t character, std::vector<Polyline>& lines) {
  if (character == U' ' || character == U'\u00a0') return space_width;
  const char* path = "L0 0 0 20 11 20 11 0 0 0";  // the box for missing characters
  for (const Glyph& g : glyphs) {
    if (g.character == character) path = g.path;
  }
  const char* end = path + std::string_view(path).size();
  const auto number = [&] {
    while (path != end && *path == ' ') ++path;
    float x = 0;
    path = std::from_chars(path, end, x).ptr;
    return x;
  };
  const std::size_t first = lines.size();
  bool down = false;
  const auto to = [&](float x, float y) {
    if (!down) lines.emplace_back();
    down = true;
    lines.back().push_back({x, y});
  };
  while (path != end) {
    const char command = *path++;
    if (command == ';') {
      down = false;
    } else if (command == 'A') {
      const float cx = number(), cy = number(), rx = number(), ry = number(), a = number(), b = number();
      const int pieces =
          std::max(2, static_cast<int>(std::abs(b - a) / 9));  // 9° is less than a tenth of a pixel
      for (int i = 0; i <= pieces; ++i) {
        const float angle = (a + (b - a) * float(i) / float(pieces)) * std::numbers::pi_v<float> / 180;
        to(cx + rx * std::cos(angle), cy + ry * std::sin(angle));
      }
    } else if (command == 'L') {
      while (path != end && *path != ';' && *path != 'A' && *path != 'L') {
        const float x = number(), y = number();
        to(x, y);
        while (path != end && *path == ' ') ++path;
      }
    }
  }
  float left = std::numeric_limits<float>::max(), right = -left;
  for (std::size_t i = first; i < lines.size(); ++i) {
    for (const Point p : lines[i]) left = std::min(left, p.x), right = std::max(right, p.x);
  }
  const bool digit = character >= U'0' && character <= U'9';
  const float advance = (digit ? digit_width : right - left) + 2 * bearing;
  const float shift = digit ? bearing : bearing - left;
  for (std::size_t i = first; i < lines.size(); ++i) {
    for (Point& p : lines[i]) p.x += shift;
  }
  return advance;
}

// Returns the digit or minus sign that a superscript represents. Returns 0 for other characters.
char32_t base_of_superscript(char32_t c) {
  switch (c) {
    case U'¹':
      return U'1';
    case U'²':
      return U'2';
    case U'³':
      return U'3';
    case U'⁻':
      return U'−';
    default:
      return c == U'⁰' || (c >= U'⁴' && c <= U'⁹') ? U'0' + (c - U'⁰') : 0;
  }
}

}  // namespace

StrokedText stroke_text(std::string_view utf8, float size) {
  StrokedText text;
  for (std::size_t i = 0; i < utf8.size();) {
    // A label may contain a file name, which can be any bytes. Bytes that are not UTF-8 are drawn as boxes.
    const bool good = io::utf8_valid_bytes(utf8.substr(i, 4)) > 0;
    const char32_t character = good ? io::utf8_next(utf8, i) : (++i, missing),
                   base = base_of_superscript(character);
    const float scale = unit * size * (base != 0 ? raised : 1),
                rise = base != 0 ? raised_by * unit * size : 0;
    const std::size_t first = text.lines.size();
    const float advance = trace(base != 0 ? base : character, text.lines);
    for (std::size_t k = first; k < text.lines.size(); ++k) {
      for (Point& p : text.lines[k]) p = {text.width + p.x * scale, rise + p.y * scale};
    }
    text.width += advance * scale;
  }
  return text;
}

}  // namespace tg::plot
