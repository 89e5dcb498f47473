// A training step as a picture.
#include "tools/bench/measured_step.h"

#include <algorithm>
#include <cmath>

#include "io/plots/plot_parts.h"
#include "tools/train_report.h"

namespace tg::bench {

namespace {

using plot::Color, plot::Image, plot::TextStyle;

constexpr Color step_paper{255, 255, 255}, step_ink{34, 38, 46}, step_soft{92, 98, 110},
    step_grid{226, 229, 234}, lane_color{246, 247, 249}, memory_color{176, 190, 208},
    memory_edge{70, 96, 130};
constexpr float step_title_size = 28, step_text_size = 22, step_tick_size = 20;
constexpr int step_left = 330, step_wide = 1400, step_right = 60, step_top = 140;
constexpr int lane_high = 46, lane_gap = 6, memory_high = 260, memory_gap = 110, step_bottom = 90;

Color color_of(Family family) {
  constexpr Color colors[family_count] = {{0, 114, 178},   {213, 94, 0},  {0, 158, 115},
                                          {204, 121, 167}, {230, 159, 0}, {120, 126, 138},
                                          {86, 180, 233},  {140, 86, 75}, {190, 194, 200}};
  return colors[static_cast<std::size_t>(family)];
}

StepPicture::Phase phase_of(const Step& s) {
  return s.name.starts_with("optimizer.grad") ? StepPicture::backward
         : s.name.starts_with("optimizer/")   ? StepPicture::update
                                              : StepPicture::forward;
}

class StepDrawing {
 public:
  explicit StepDrawing(const StepPicture& p)
      : p_(p),
        end_(p.kernels.empty() ? 1 : p.kernels.back().to),
        lanes_(used_families(p)),
        memory_top_(step_top + static_cast<int>(lanes_.size()) * (lane_high + lane_gap) + memory_gap),
        image_(step_left + step_wide + step_right, memory_top_ + memory_high + step_bottom, step_paper) {}

  Image draw(const std::string& title) {
    text(step_left, 46, title, step_title_size, step_ink);
    for (std::size_t i = 0; i < lanes_.size(); ++i) draw_lane(lanes_[i], lane_top(i));
    draw_memory();
    draw_phases();
    draw_time(lanes_bottom(), false);
    draw_time(memory_top_ + memory_high, true);
    return std::move(image_);
  }

 private:
  static std::vector<Family> used_families(const StepPicture& p) {
    std::vector<Family> used;
    for (std::size_t f = 0; f < family_count; ++f)
      for (const StepPicture::Kernel& k : p.kernels)
        if (static_cast<std::size_t>(k.family) == f) {
          used.push_back(k.family);
          break;
        }
    return used;
  }
  static int lane_top(std::size_t lane) { return step_top + static_cast<int>(lane) * (lane_high + lane_gap); }
  int lanes_bottom() const { return lane_top(lanes_.size()); }
  float x_of(double seconds) const { return static_cast<float>(step_left + step_wide * seconds / end_); }
  static int whole(float v) { return static_cast<int>(std::lround(v)); }
  void text(float x, float y, const std::string& s, float size, Color color,
            TextStyle::Align align = TextStyle::Align::left) {
    image_.text({x, y}, s, {.size = size, .color = color, .align = align});
  }

  // Forward, backward and update, as spans above the lanes.
  void draw_phases() {
    constexpr const char* names[] = {"forward", "backward", "update"};
    for (std::size_t i = 0; i < p_.kernels.size();) {
      std::size_t j = i;
      while (j < p_.kernels.size() && p_.kernels[j].phase == p_.kernels[i].phase) ++j;
      const float from = x_of(p_.kernels[i].from), to = x_of(p_.kernels[j - 1].to);
      const std::string name = names[p_.kernels[i].phase];
      if (i > 0) draw_edge(whole(from));
      // A name that is wider than its span would cover its neighbour.
      if (to - from > plot::stroke_text(name, step_text_size).width + 8)
        text((from + to) / 2, step_top - 18, name, step_text_size, step_ink, TextStyle::Align::center);
      i = j;
    }
  }

  // Between two phases.
  void draw_edge(int x) {
    image_.fill(x, step_top - 40, x + 1, lanes_bottom(), step_soft, 0.6f);
    image_.fill(x, memory_top_, x + 1, memory_top_ + memory_high, step_soft, 0.6f);
  }

  void draw_lane(Family family, int top) {
    double seconds = 0;
    image_.fill(step_left, top, step_left + step_wide, top + lane_high, lane_color);
    for (const StepPicture::Kernel& k : p_.kernels) {
      if (k.family != family) continue;
      seconds += k.to - k.from;
      const int from = whole(x_of(k.from)), to = std::max(from + 1, whole(x_of(k.to)));
      image_.fill(from, top, to, top + lane_high, color_of(family));
      if (to - from > 3)
        image_.fill(to - 1, top, to, top + lane_high, step_paper, 0.6f);  // apart from the next
    }
    const float middle = static_cast<float>(top) + lane_high / 2.f + 7;
    char share[32];
    std::snprintf(share, sizeof share, "%.1f %%", 100 * seconds / end_);
    image_.fill(24, top + lane_high / 2 - 9, 42, top + lane_high / 2 + 9, color_of(family));
    text(54, middle, name_of(family), step_text_size, step_ink);
    text(step_left - 14, middle, share, step_text_size, step_soft, TextStyle::Align::right);
  }

  void draw_memory() {
    std::size_t most = 1;
    for (const StepPicture::Kernel& k : p_.kernels) most = std::max(most, k.bytes);
    const bool large = most >= std::size_t{1} << 30;
    const double unit = large ? 1 << 30 : 1 << 20, top = static_cast<double>(most) / unit;
    plot::PlotAxis axis = plot::make_plot_axis(0, top, false, 5);
    axis.lo = 0;
    const int bottom = memory_top_ + memory_high;
    const auto y_of = [&](double v) {
      return bottom - static_cast<int>(std::lround(axis.place(v) * memory_high));
    };
    for (const plot::PlotTick& t : axis.ticks) {
      if (t.label.empty()) continue;
      const int y = y_of(t.value);
      image_.fill(step_left, y, step_left + step_wide, y + 1, step_grid);
      text(step_left - 14, static_cast<float>(y) + 7, t.label, step_tick_size, step_soft,
           TextStyle::Align::right);
    }
    for (const StepPicture::Kernel& k : p_.kernels) {
      const int from = whole(x_of(k.from)), to = std::max(from + 1, whole(x_of(k.to))),
                y = y_of(static_cast<double>(k.bytes) / unit);
      image_.fill(from, y, to, bottom, memory_color);
      image_.fill(from, y, to, y + 3, memory_edge);
    }
    image_.text(
        {step_left - 100, static_cast<float>(bottom) - memory_high / 2.f},
        large ? "GiB in use" : "MiB in use",
        {.size = step_text_size, .color = step_ink, .align = TextStyle::Align::center, .upwards = true});
    text(step_left, static_cast<float>(memory_top_) - 16,
         "activations and gradients in use: at most " + size_text(static_cast<double>(most)) + "; all else " +
             size_text(static_cast<double>(p_.always)),
         step_text_size, step_ink);
  }

  void draw_time(int below, bool named) {
    const plot::PlotAxis axis = plot::make_plot_axis(0, end_ * 1e3, false, 12);
    image_.fill(step_left, below, step_left + step_wide, below + 2, step_soft);
    for (const plot::PlotTick& t : axis.ticks) {
      if (t.label.empty() || t.value < 0 || t.value > end_ * 1e3) continue;
      const float x = x_of(t.value * 1e-3), y = static_cast<float>(below);
      image_.line({x, y}, {x, y + 8}, 1.8f, step_soft);
      text(x, y + 30, t.label, step_tick_size, step_soft, TextStyle::Align::center);
    }
    if (named)
      text(step_left + step_wide / 2.f, static_cast<float>(below) + 66, "time within the step (ms)",
           step_text_size, step_ink, TextStyle::Align::center);
  }

  const StepPicture& p_;
  double end_;
  std::vector<Family> lanes_;
  int memory_top_;
  Image image_;
};

}  // namespace

StepPicture step_picture(const Program& program, std::span<const double> seconds) {
  StepPicture p;
  std::vector<std::size_t> alive(program.steps().size() + 1);
  for (const ArenaBuffer& b : program.buffers())
    for (int s = b.first; s <= b.last; ++s) alive[static_cast<std::size_t>(s)] += b.bytes;
  double at = 0;
  for (std::size_t i = 0; i < program.steps().size(); ++i) {
    const Step& s = program.steps()[i];
    p.kernels.push_back({at, at + seconds[i], family_of(s), phase_of(s), alive[i]});
    at += seconds[i];
  }
  const MemoryReport m = program.memory();
  p.always = m.peak() - m.arena;
  return p;
}

plot::Image draw_step(const StepPicture& picture, const std::string& title) {
  return StepDrawing(picture).draw(title);
}

}  // namespace tg::bench
