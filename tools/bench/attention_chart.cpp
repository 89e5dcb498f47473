// The rates of cells as bars.
#include <algorithm>
#include <cmath>

#include "io/plots/plot_parts.h"
#include "tools/bench/attention_rates.h"

namespace tg::bench {

namespace {

using plot::Color;
using plot::Image;
using plot::TextStyle;

constexpr Color paper{255, 255, 255}, ink{34, 38, 46}, soft{92, 98, 110}, grid{226, 229, 234};
constexpr int left = 110, right = 30, top = 110, panel = 380, gap = 40;
constexpr float name_size = 18;
constexpr int bar = 14, group = 3 * bar + 14;  // pixels

struct Comparand {
  const char* name;
  double AttentionRates::*rate;
  Color color;
};
constexpr Comparand comparands[] = {{"tilegrad", &AttentionRates::ours, {0, 114, 178}},
                                    {"cuDNN", &AttentionRates::cudnn, {230, 159, 0}},
                                    {"FlashAttention-2", &AttentionRates::flash, {150, 156, 166}}};

void draw_grid(Image& image, const plot::PlotAxis& axis, int bottom, const std::string& pass) {
  for (const plot::PlotTick& t : axis.ticks) {
    if (t.label.empty()) continue;
    const int y = bottom - static_cast<int>(axis.place(t.value) * panel);
    image.fill(left, y, image.width() - right, y + 1, grid);
    image.text({left - 10, static_cast<float>(y) + 6}, t.label,
               {.size = 20, .color = soft, .align = TextStyle::Align::right});
  }
  image.text({34, static_cast<float>(bottom) - panel / 2}, pass + ", TFLOP/s",
             {.size = 22, .color = ink, .align = TextStyle::Align::center, .upwards = true});
}

// The sizes and the mask.
std::string name_of_cell(const AttentionRates& r) {
  return r.shape + r.name.substr(std::min(r.name.size(), std::string("flash_attn").size()));
}

void draw_cell(Image& image, const AttentionRates& r, const plot::PlotAxis& axis, int x, int bottom) {
  for (std::size_t i = 0; i < std::size(comparands); ++i) {
    const double rate = r.*comparands[i].rate;
    if (std::isnan(rate)) continue;
    const int high = static_cast<int>(axis.place(rate) * panel), from = x + static_cast<int>(i) * bar;
    image.fill(from, bottom - high, from + bar - 2, bottom, comparands[i].color);
  }
  image.text({static_cast<float>(x) + 1.5f * bar + 6, static_cast<float>(bottom) + 12}, name_of_cell(r),
             {.size = name_size, .color = ink, .align = TextStyle::Align::right, .upwards = true});
}

void draw_legend(Image& image, const std::string& title) {
  image.text({left, 40}, title, {.size = 26, .color = ink});
  int x = left;
  for (const Comparand& c : comparands) {
    image.fill(x, 62, x + 18, 80, c.color);
    image.text({static_cast<float>(x) + 26, 79}, c.name, {.size = 20, .color = ink});
    x += 60 + 12 * static_cast<int>(std::string(c.name).size());
  }
}

}  // namespace

plot::Image draw_rates(const std::vector<AttentionRates>& rates, const std::string& title) {
  double highest = 0;
  int count[2] = {0, 0}, names = 0;  // cells of each pass; pixels of the longest name
  for (const AttentionRates& r : rates) {
    ++count[r.backward];
    names = std::max(names, gap + static_cast<int>(plot::stroke_text(name_of_cell(r), name_size).width));
    for (const Comparand& c : comparands)
      if (!std::isnan(r.*c.rate)) highest = std::max(highest, r.*c.rate);
  }
  const int most = (Image::most - left - right) / group,
            width = std::max(900, left + right + group * std::min(most, std::max(count[0], count[1])));
  Image image(width, top + 2 * (panel + names), paper);
  draw_legend(image, title);
  plot::PlotAxis axis = plot::make_plot_axis(0, highest > 0 ? highest : 1, false, 6);
  axis.lo = 0;  // bars start there
  for (bool backward : {false, true}) {
    const int bottom = top + panel + (backward ? panel + names : 0);
    draw_grid(image, axis, bottom, backward ? "backward" : "forward");
    int n = 0;
    for (const AttentionRates& r : rates)
      if (r.backward == backward && n < most) draw_cell(image, r, axis, left + 10 + group * n++, bottom);
  }
  return image;
}

}  // namespace tg::bench
