// Computes ticks at round numbers and their labels.
#include "io/plots/plot_parts.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace tg::plot {
namespace {

std::string superscript(int n) {
  constexpr const char* digits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string s = n < 0 ? "⁻" : "";
  for (const char c : std::to_string(std::abs(n))) s += digits[c - '0'];
  return s;
}

std::string with_minus(std::string s) {  // uses the minus sign, not a hyphen
  return s.starts_with('-') ? "−" + s.substr(1) : s;
}

std::string plain_number(double value, int decimals) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", decimals, value);
  return with_minus(buffer);
}

constexpr double slack = 1e-9;  // for rounding errors

// Returns the smallest of 1, 2, 5 · 10^k that is at least x.
double round_step(double x) {
  const double power = std::pow(10.0, std::floor(std::log10(x)));
  for (const double m : {1.0, 2.0, 5.0}) {
    if (m * power >= x * (1 - slack)) return m * power;
  }
  return 10 * power;
}

void linear_ticks(PlotAxis& axis, int count) {
  const double step = round_step((axis.hi - axis.lo) / count);
  const double largest = std::max(std::abs(axis.lo), std::abs(axis.hi));
  const int step_power = static_cast<int>(std::floor(std::log10(step) + slack));
  const int power = static_cast<int>(std::floor(std::log10(largest) + slack));
  const bool scientific = largest >= 1e6 || largest < 1e-3;
  const auto first = static_cast<long long>(std::ceil(axis.lo / step - slack));
  for (long long i = first; static_cast<double>(i) * step <= axis.hi + slack * step; ++i) {
    const double value = static_cast<double>(i) * step;
    std::string label = scientific && i != 0
                            ? plain_number(value / std::pow(10.0, power), std::max(0, power - step_power)) +
                                  "×10" + superscript(power)
                            : plain_number(i == 0 ? 0.0 : value, scientific ? 0 : std::max(0, -step_power));
    axis.ticks.push_back({value, std::move(label)});
  }
}

// Labels 10^n at every k-th power. Minor ticks are the powers in between. If k = 1, they are 2 to 9 times
// each power. If there is space, 2 and 5 times each power are labeled too. If the axis is shorter than 0.7
// decades, every multiple is labeled.
void log_ticks(PlotAxis& axis, int count) {
  const double decades = axis.hi - axis.lo;
  const int every = std::max(1, static_cast<int>(std::ceil(decades / count)));
  const bool narrow = 3 * decades <= std::max(count, 6);
  for (int n = static_cast<int>(std::floor(axis.lo)); n <= axis.hi + slack; ++n) {
    const double power = std::pow(10.0, n);
    for (int m = 1; m <= (every == 1 ? 9 : 1); ++m) {
      const double at = n + std::log10(m);
      if (at < axis.lo - slack || at > axis.hi + slack) continue;
      std::string label;
      if (m == 1 && n % every == 0) label = "10" + superscript(n);
      if (narrow && m > 1 && (m == 2 || m == 5 || decades < 0.7))
        label = std::to_string(m) + "×10" + superscript(n);
      if (narrow && n >= -3 && n <= 4 && !label.empty()) label = plain_number(m * power, std::max(0, -n));
      axis.ticks.push_back({m * power, std::move(label)});
    }
  }
}

}  // namespace

double PlotAxis::place(double value) const {
  return ((log ? std::log10(value) : value) - lo) / (hi - lo);
}

PlotAxis make_plot_axis(double lo, double hi, bool log, int count) {
  PlotAxis axis;
  axis.log = log;
  if (log) lo = std::log10(lo), hi = std::log10(hi);
  // A constant series also needs an axis that is not empty: a decade, or a tenth of the value.
  double margin = 0.04 * (hi - lo);
  const double scale = std::max(std::abs(lo), std::abs(hi));
  if (hi - lo <= std::max(1e-12 * scale, 1e-290)) margin = log ? 0.5 : scale < 1e-290 ? 1.0 : 0.1 * scale;
  axis.lo = lo - margin;
  axis.hi = hi + margin;
  log ? log_ticks(axis, count) : linear_ticks(axis, count);
  return axis;
}

}  // namespace tg::plot
