#include "tools/bench/attention_rates.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace tg::bench {

namespace {

std::string text(const char* format, double x) {
  char s[32];
  std::snprintf(s, sizeof s, format, x);
  return std::isnan(x) ? "-" : s;
}

// A line of the table: the name, and numbers of nine characters.
std::string line(const std::string& name, std::initializer_list<std::string> numbers) {
  std::string s = column(name, 64);
  for (const std::string& n : numbers) s += std::string(n.size() < 10 ? 10 - n.size() : 1, ' ') + n;
  return s + "\n";
}

// The geometric means of the ratios of a pass.
std::string means(const std::vector<AttentionRates>& rates, bool backward) {
  std::vector<double> cudnn, flash;
  for (const AttentionRates& r : rates)
    if (r.backward == backward) cudnn.push_back(r.ours / r.cudnn), flash.push_back(r.ours / r.flash);
  if (cudnn.empty()) return "";
  return line(std::string("geometric mean, ") + (backward ? "backward" : "forward"),
              {"", "", "", text("%.3f", geometric_mean(cudnn)), "", text("%.3f", geometric_mean(flash))});
}

}  // namespace

double geometric_mean(const std::vector<double>& values) {
  double sum = 0;
  int n = 0;
  for (double x : values)
    if (!std::isnan(x)) sum += std::log(x), ++n;
  return n > 0 ? std::exp(sum / n) : Row::none;
}

std::string rates_table(const std::vector<AttentionRates>& rates, bool compares) {
  std::string s = compares ? line("TFLOP/s", {"ours", "share", "cuDNN", "ratio", "FA2", "ratio"})
                           : line("TFLOP/s", {"ours", "share"});
  for (const AttentionRates& r : rates) {
    const std::string name = column(r.shape, 26) + column(r.name, 28) + (r.backward ? "backward" : "forward");
    const std::string ours = text("%.1f", r.ours), share = text("%.3f", r.share);
    s += compares ? line(name, {ours, share, text("%.1f", r.cudnn), text("%.3f", r.ours / r.cudnn),
                                text("%.1f", r.flash), text("%.3f", r.ours / r.flash)})
                  : line(name, {ours, share});
  }
  return compares ? s + means(rates, false) + means(rates, true) : s;
}

}  // namespace tg::bench
