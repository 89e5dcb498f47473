#include "tools/bench/step_picture.h"

#include <algorithm>

#include "core/compile/fused_reductions.h"
#include "tools/bench/chart.h"
#include "tools/bench/report.h"
#include "tools/train_report.h"

namespace tg::bench {

namespace {

using plot::Color, plot::Image, plot::TextStyle;

constexpr Color lane_color{246, 247, 249}, memory_color{176, 190, 208}, memory_edge{70, 96, 130};
constexpr float step_title_size = 28, step_text_size = 22;
constexpr int step_left = 330, step_wide = 1400, step_right = 60, step_top = 140;
constexpr int lane_high = 46, lane_gap = 6, memory_high = 260, memory_gap = 110, step_bottom = 90;

constexpr std::string_view gradient_path = "optimizer.grad.";

// The path of the layer to which a step belongs. A step of the layer's gradient has the same path:
// "transformer.h.0.attn" for "optimizer.grad.transformer.h.0.attn/flash_attn_backward".
std::string_view layer_of(const Step& s) {
  std::string_view path(s.name);
  path = path.substr(0, path.rfind('/'));
  return path.starts_with(gradient_path) ? path.substr(gradient_path.size()) : path;
}

// Whether the step is a GEMM of the head. Such a step has the path of the model, of lm_head, or of the
// embedding whose weight the head shares.
bool is_of_head(const Step& s) {
  return layer_of(s).find('.') == std::string_view::npos || part_of(s.name) == "embeddings";
}

// The family of an op, by the file in ops/ that defines it.
constexpr std::pair<std::string_view, Family> families[] = {{"matmul.cpp", Family::products},
                                                            {"flash_attn.cpp", Family::attention},
                                                            {"norm.cpp", Family::norms},
                                                            {"cross_entropy.cpp", Family::head},
                                                            {"matmul_in_units.cpp", Family::head},
                                                            {"linear_cross_entropy.cpp", Family::head},
                                                            {"copy.cpp", Family::casts},
                                                            {"concat.cpp", Family::casts},
                                                            {"index.cpp", Family::embedding},
                                                            {"gather.cpp", Family::embedding},
                                                            {"index_assign.cpp", Family::embedding},
                                                            {"rope.cpp", Family::embedding}};

Family family_of(const Op& op) {
  std::string_view file = op.where.file_name();
  file = file.substr(file.find_last_of('/') + 1);
  for (const auto& [name, family] : families)
    if (name == file) return family;
  return Family::rest;
}

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
        image_(step_left + step_wide + step_right, memory_top_ + memory_high + step_bottom, chart_paper) {}

  Image draw(const std::string& title) {
    draw_text(image_, step_left, 46, title, {step_title_size});
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
  void text(float x, float y, const std::string& s, TextStyle::Align align = TextStyle::Align::left,
            Color color = chart_ink) {
    draw_text(image_, x, y, s, {step_text_size, color, align});
  }
  // Returns the pixel columns of a kernel; at least one.
  std::pair<int, int> columns_of(const StepPicture::Kernel& k) const {
    const int from = whole(x_of(k.from));
    return {from, std::max(from + 1, whole(x_of(k.to)))};
  }

  // Draws the labels forward, backward and update above the lanes.
  void draw_phases() {
    constexpr const char* names[] = {"forward", "backward", "update"};
    for (std::size_t i = 0; i < p_.kernels.size();) {
      std::size_t j = i;
      while (j < p_.kernels.size() && p_.kernels[j].phase == p_.kernels[i].phase) ++j;
      const float from = x_of(p_.kernels[i].from), to = x_of(p_.kernels[j - 1].to);
      const std::string name = names[p_.kernels[i].phase];
      if (i > 0) draw_edge(whole(from));
      // Omits a name that is wider than its span, because it would overlap its neighbor.
      if (to - from > plot::stroke_text(name, step_text_size).width + 8)
        text((from + to) / 2, step_top - 18, name, TextStyle::Align::center);
      i = j;
    }
  }

  // Draws a line between two phases.
  void draw_edge(int x) {
    image_.fill(x, step_top - 40, x + 1, lanes_bottom(), chart_soft, 0.6f);
    image_.fill(x, memory_top_, x + 1, memory_top_ + memory_high, chart_soft, 0.6f);
  }

  void draw_lane(Family family, int top) {
    double seconds = 0;
    image_.fill(step_left, top, step_left + step_wide, top + lane_high, lane_color);
    for (const StepPicture::Kernel& k : p_.kernels) {
      if (k.family != family) continue;
      seconds += k.to - k.from;
      const auto [from, to] = columns_of(k);
      image_.fill(from, top, to, top + lane_high, color_of(family));
      if (to - from > 3)
        image_.fill(to - 1, top, to, top + lane_high, chart_paper, 0.6f);  // separates it from the next
                                                                           // kernel
    }
    const float middle = static_cast<float>(top) + lane_high / 2.f + 7;
    image_.fill(24, top + lane_high / 2 - 9, 42, top + lane_high / 2 + 9, color_of(family));
    text(54, middle, name_of(family));
    text(step_left - 14, middle, number(100 * seconds / end_, "%.1f %%"), TextStyle::Align::right,
         chart_soft);
  }

  void draw_memory() {
    std::size_t most = 1;
    for (const StepPicture::Kernel& k : p_.kernels) most = std::max(most, k.bytes);
    const bool large = most >= std::size_t{1} << 30;
    const double unit = large ? 1 << 30 : 1 << 20, top = static_cast<double>(most) / unit;
    const plot::PlotAxis axis = axis_from_zero(top, 5);
    const int bottom = memory_top_ + memory_high;
    const auto y_of = [&](double v) {
      return bottom - static_cast<int>(std::lround(axis.place(v) * memory_high));
    };
    draw_grid(image_, axis, step_left, step_left + step_wide, y_of, 14, 7);
    for (const StepPicture::Kernel& k : p_.kernels) {
      const auto [from, to] = columns_of(k);
      const int y = y_of(static_cast<double>(k.bytes) / unit);
      image_.fill(from, y, to, bottom, memory_color);
      image_.fill(from, y, to, y + 3, memory_edge);
    }
    draw_upwards(image_, step_left - 100, static_cast<float>(bottom) - memory_high / 2.f,
                 large ? "GiB in use" : "MiB in use", step_text_size);
    text(step_left, static_cast<float>(memory_top_) - 16,
         "activations and gradients in use: at most " + size_text(static_cast<double>(most)) +
             "; other memory " + size_text(static_cast<double>(p_.always)));
  }

  void draw_time(int below, bool named) {
    const auto y = static_cast<float>(below);
    image_.fill(step_left, below, step_left + step_wide, below + 2, chart_soft);
    draw_ticks_below(
        image_, plot::make_plot_axis(0, end_ * 1e3, false, 12), end_ * 1e3,
        [&](double ms) { return x_of(ms * 1e-3); }, y, 30);
    if (named)
      text(step_left + step_wide / 2.f, y + 66, "time within the step (ms)", TextStyle::Align::center);
  }

  const StepPicture& p_;
  double end_;
  std::vector<Family> lanes_;
  int memory_top_;
  Image image_;
};

}  // namespace

const char* name_of(Family family) {
  constexpr const char* names[family_count] = {"matrix products",   "attention",         "norms",
                                               "head and loss",     "other elementwise", "casts and copies",
                                               "embedding, rotary", "optimizer",         "rest"};
  return names[static_cast<std::size_t>(family)];
}

Family family_of(const Step& s) {
  if (s.name.starts_with("optimizer/")) return Family::optimizer;
  if (const FusedAttrs* chain = fused_text_of(*s.op, s.attrs)) {
    const auto moves = [](const auto& i) { return family_of(*i.op) == Family::casts; };
    return s.op == &fused_op && std::ranges::all_of(chain->code, moves) ? Family::casts : Family::chains;
  }
  const Family family = family_of(*s.op);
  return family == Family::products && is_of_head(s) ? Family::head : family;
}

std::vector<FamilyTime> by_family(std::span<const Step> steps, std::span<const double> seconds) {
  std::vector<FamilyTime> sums(family_count);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    FamilyTime& sum = sums[static_cast<std::size_t>(family_of(steps[i]))];
    sum.seconds += seconds[i], ++sum.steps;
  }
  return sums;
}

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
