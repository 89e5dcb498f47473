// A typeface of pen strokes, drawn for this project, so that plots carry text without any font file. It has
// ASCII, · × ± − – — ° µ √ ∞ ≤ ≥ ≈ ξ and the superscripts ⁰ to ⁹ and ⁻; anything else shows as a box.
#pragma once

#include <string_view>
#include <vector>

#include <tilegrad/io/plots/image.h>

namespace tg::plot {

struct StrokedText {
  std::vector<Polyline> lines;  // from the baseline's left end, y upwards
  float width = 0;
};

// Lays out one line of UTF-8 text. `size` is the height of a line; capitals are 0.7 · size high.
StrokedText stroke_text(std::string_view utf8, float size);

// The width of the strokes at regular weight, as a part of the size.
inline constexpr float stroke_width = 0.078f;

}  // namespace tg::plot
