// Draws the scaling over ranks. Its input is the rows of several runs of `bench ranks` with different numbers
// of ranks. Each number of ranks has a bar. For training steps and ring attention, a line marks perfect
// scaling, and the label is the share of perfect scaling that was reached.
#include <algorithm>
#include <map>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/plots/png_plot.h>
#include "tools/bench/chart.h"
#include "tools/bench/report.h"

namespace tg::bench {

namespace {

// A row that occurs in several runs, with its results by number of ranks.
struct ScalingRow {
  std::string label;               // what was measured, and its shape
  std::map<int, double> by_ranks;  // speedup over one rank, or GB/s per rank
};

struct Scaling {
  std::string machine;
  std::vector<int> ranks;                // numbers of ranks of the runs, ascending
  std::vector<ScalingRow> times, rates;  // times: steps and ring attention; rates: collectives
};

void add_value(std::vector<ScalingRow>& rows, const std::string& label, int ranks, double value) {
  auto at = std::ranges::find(rows, label, &ScalingRow::label);
  if (at == rows.end()) at = rows.insert(rows.end(), {label, {}});
  if (!at->by_ranks.insert({ranks, value}).second)
    throw Error("[bench] two files have a row '" + label + "' for " + std::to_string(ranks) +
                " ranks: expected one for each number of ranks");
}

// Throws Error if a file cannot be read or was not written by `bench ranks`, or if runs are from different
// machines. Also throws Error if two files have the same row for the same number of ranks, or if there is no
// row to draw.
Scaling read_scaling(const std::vector<std::string>& files) {
  Scaling s;
  for (const std::string& file : files) {
    const SavedRows run = read_rows(file);
    if (run.ranks < 1) throw Error("[bench] " + file + " has no rows of the mode ranks");
    if (s.machine.empty()) s.machine = run.machine;
    if (run.machine != s.machine)
      throw Error("[bench] " + file + " is from a different machine: " + run.machine + ", not " + s.machine);
    if (!std::ranges::count(s.ranks, run.ranks)) s.ranks.push_back(run.ranks);
    for (const Row& row : run.rows) {
      const std::string pass = row.pass.ends_with(" ranks") ? "" : " " + row.pass,
                        label = row.name + pass + ", " + row.dtype + " " + row.shape;
      if (row.of == all_alone)
        add_value(s.times, label, run.ranks, row.share * run.ranks);
      else if (row.unit == "GB/s" && run.ranks > 1)
        add_value(s.rates, label, run.ranks, row.rate);
    }
  }
  std::ranges::sort(s.ranks);
  if (s.times.empty() && s.rates.empty()) throw Error("[bench] these files have no row to draw");
  return s;
}

constexpr int margins = BarPanel::left + 40, least_bar = 26, most_bar = 60;

// Draws the rows of one kind as bars. If `has_perfect` is set, also draws perfect scaling: a speedup equal to
// the number of ranks.
struct ScalingPanel : BarPanel {
  int names;  // height in pixels

  ScalingPanel(const Scaling& s, const std::vector<ScalingRow>& rows, bool has_perfect)
      : BarPanel{.unit = has_perfect ? "speedup over one rank" : "GB/s of each rank",
                 .remark = has_perfect ? "black lines: perfect scaling; numbers: the share of it" : "",
                 .highest = has_perfect ? static_cast<double>(s.ranks.back()) : 0,
                 .bars = 0,
                 .bar = least_bar,
                 .space = 3,
                 .between = 22,
                 .margin = 11} {
    std::vector<int> ranks = s.ranks;        // the numbers of ranks that rows may have, one bar for each
    if (!has_perfect) std::erase(ranks, 1);  // a single rank exchanges nothing
    bars = static_cast<int>(ranks.size());
    for (const ScalingRow& row : rows) {
      BarGroup& added = groups.emplace_back(BarGroup{row.label, {}});
      for (const auto& [n, value] : row.by_ranks) {
        added.bars.push_back({static_cast<std::size_t>(std::ranges::find(ranks, n) - ranks.begin()), value,
                              color_of(s, n), has_perfect ? n : Row::none});
        if (std::isfinite(value)) highest = std::max(highest, value);
      }
    }
    names = height_of_names(groups);
    const auto most = static_cast<std::size_t>((plot::Image::most - margins) / group());
    groups.resize(std::min(groups.size(), most));  // as many as fit in an image
  }

  static plot::Color color_of(const Scaling& s, int ranks) {
    return plot::palette(static_cast<std::size_t>(std::ranges::find(s.ranks, ranks) - s.ranks.begin()));
  }
  int count() const { return static_cast<int>(groups.size()); }
  int height() const { return groups.empty() ? 0 : 90 + high + names; }
  void widen_bars(int width) {
    const int each = width / std::max(1, count()) - between;
    bar = std::clamp(each / std::max(1, bars), least_bar, most_bar);
  }
};

}  // namespace

void draw_scaling(const Settings& settings) {
  const Scaling s = read_scaling(settings.train.rows);
  ScalingPanel panels[] = {{s, s.times, true}, {s, s.rates, false}};
  constexpr int top = 110;
  int width = 750, bottom = top;
  for (const ScalingPanel& p : panels) width = std::max(width, p.count() * p.group()), bottom += p.height();
  plot::Image image(width + margins, bottom, chart_paper);
  std::vector<LegendEntry> legend;
  for (const int n : s.ranks)
    legend.push_back({std::to_string(n) + (n == 1 ? " rank" : " ranks"), ScalingPanel::color_of(s, n), 130});
  draw_head(image, 44, s.machine + ", ranks together", legend);
  bottom = top;
  for (ScalingPanel& p : panels) {
    p.widen_bars(width);
    if (!p.groups.empty()) p.draw(image, width, bottom + p.height() - p.names);
    bottom += p.height();
  }
  image.save_png(settings.plot);
}

}  // namespace tg::bench
