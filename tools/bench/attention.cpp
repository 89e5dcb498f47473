// Measures flash_attn forward and backward. The rate of each cell is also reported relative to the machine's
// multiply-add rate and to tilegrad's GEMM. With --compare, PyTorch's rates are added. The output is a table
// and a bar chart.
#include <array>
#include <cmath>
#include <optional>

#include <tilegrad/ops/ops.h>
#include "tools/bench/attention_programs.h"
#include "tools/bench/chart.h"
#include "tools/bench/other_libraries.h"

namespace tg::bench {

namespace {

// Rates in TFLOP/s of tilegrad, cuDNN and FlashAttention-2. NaN means that the rate was not measured or the
// call is not supported.
struct AttentionRates {
  std::string name, shape;
  Pass pass;
  double share;  // tilegrad's rate as a share of the peak
  std::array<double, 3> rates;
  double ratio(std::size_t i) const { return rates[0] / rates[i]; }
};

constexpr std::pair<const char*, plot::Color> comparands[] = {
    {"tilegrad", {0, 114, 178}}, {"cuDNN", {230, 159, 0}}, {"FlashAttention-2", {150, 156, 166}}};

// Formats the geometric mean of the values, without NaN.
std::string geometric_mean(const std::vector<double>& values) {
  double sum = 0;
  int n = 0;
  for (double x : values)
    if (!std::isnan(x)) sum += std::log(x), ++n;
  return number(n > 0 ? std::exp(sum / n) : Row::none, "%.3f", "-");
}

// Prints tilegrad's rates and their share of the GEMM rate. If `compares` is true, also prints PyTorch's
// rates and the ratios of tilegrad's rates to them.
void print_rates(const std::vector<AttentionRates>& all, bool compares) {
  // Prints one line: the name, and numbers padded to nine characters.
  const auto print = [&](const std::string& name, std::vector<std::string> numbers) {
    if (!compares) numbers.resize(2);
    std::printf("%s", column(name, 64).c_str());
    for (const std::string& n : numbers) std::printf(" %9s", n.c_str());
    std::printf("\n");
  };
  print("TFLOP/s", {"ours", "share", "cuDNN", "ratio", "FA2", "ratio"});
  const auto rate = [](double x) { return number(x, "%.1f", "-"); };
  const auto ratio = [](double x) { return number(x, "%.3f", "-"); };
  for (const AttentionRates& r : all)
    print(column(r.shape, 26) + column(r.name, 28) + name_of(r.pass),
          {rate(r.rates[0]), ratio(r.share), rate(r.rates[1]), ratio(r.ratio(1)), rate(r.rates[2]),
           ratio(r.ratio(2))});
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    std::vector<double> cudnn, flash;
    for (const AttentionRates& r : all)
      if (r.pass == pass) cudnn.push_back(r.ratio(1)), flash.push_back(r.ratio(2));
    if (compares && !cudnn.empty())
      print(std::string("geometric mean, ") + name_of(pass),
            {"", "", "", geometric_mean(cudnn), "", geometric_mean(flash)});
  }
}

// Draws bars for each cell, the forward pass above the backward pass.
plot::Image draw_rates(const std::vector<AttentionRates>& all, const std::string& title) {
  constexpr int right = 30, top = 110;
  BarPanel panels[] = {{"forward, TFLOP/s", "", 0, 3, 14, 2, 14, 10},
                       {"backward, TFLOP/s", "", 0, 3, 14, 2, 14, 10}};
  double highest = 0;
  int names = 0;  // width in pixels
  std::size_t count = 0;
  for (const AttentionRates& r : all) {
    BarPanel& panel = panels[r.pass == Pass::backward];
    BarGroup& group = panel.groups.emplace_back();
    // The name of a group consists of the sizes and the mask.
    group.name = r.shape + r.name.substr(std::min(r.name.size(), std::string("flash_attn").size()));
    for (std::size_t i = 0; i < r.rates.size(); ++i) {
      group.bars.push_back({i, r.rates[i], comparands[i].second});
      if (!std::isnan(r.rates[i])) highest = std::max(highest, r.rates[i]);
    }
    names = std::max(names, height_of_names(panel.groups));
    count = std::max(count, panel.groups.size());
  }
  const int group = panels[0].group(), most = (plot::Image::most - BarPanel::left - right) / group,
            cells = std::min(most, static_cast<int>(count)),
            width = std::max(900, BarPanel::left + right + group * cells);
  plot::Image image(width, top + 2 * (BarPanel::high + names), chart_paper);
  std::vector<LegendEntry> legend;
  for (const auto& [name, color] : comparands)
    legend.push_back({name, color, 60 + 12 * static_cast<int>(std::string(name).size())});
  draw_head(image, 40, title, legend);
  int bottom = top + BarPanel::high;
  for (BarPanel& panel : panels) {
    panel.highest = highest;
    panel.groups.resize(std::min(panel.groups.size(), static_cast<std::size_t>(most)));
    panel.draw(image, width - right - BarPanel::left, bottom);
    bottom += BarPanel::high + names;
  }
  return image;
}

// Reports the memory that is needed in addition to inputs and results, according to the memory plan.
void report_memory(const AttentionCell& c, bool with_backward, Report& report) {
  RecordedAttention r(c, report.settings);
  if (with_backward) r.add_gradients();
  const MemoryReport m = compile(r.g, r.outputs, report.settings.compile_options()).memory();
  const double extra = static_cast<double>(m.peak() - m.inputs) - bytes_of(r.outputs);
  report.add(report.row(c.name() + " extra memory", c.shape(), with_backward ? "both" : "forward")
                 .at(extra / (1 << 20), "MiB"));
}

class AttentionBench {
 public:
  explicit AttentionBench(Report& report) : report_(report), settings_(report.settings) {
    if (settings_.on_cpu())
      product_ = sgemm(report);
    else
      cold_.emplace(settings_);
    if (settings_.compare) torch_.emplace(settings_.device);
  }

  void run(Pass pass) {
    const AttentionCell* full = nullptr;  // the previous cell if it has no mask
    double full_seconds = 0;
    for (const AttentionCell& c : settings_.attention.cells) {
      if (!report_.selects(c.name())) continue;
      const Timing t = time(c, pass, settings_.threads);
      add_row(c, pass, t);
      if (full && c.causal && c.window < 0 && full->shape() == c.shape())
        report_.add(row(c, " / full", pass, t.seconds).at(t.seconds / full_seconds, "×"));
      full = c.causal || c.window >= 0 ? nullptr : &c, full_seconds = t.seconds;
      if (settings_.threads == 1 || !full) continue;
      const double times = time(c, pass, 1).seconds / t.seconds;
      report_.add(
          row(c, ", all / one", pass, t.seconds).at(times, "×").part(times / settings_.threads, "threads"));
    }
  }

  // Prints the table of all rates and draws the chart.
  void finish() const {
    if (rates_.empty()) return;
    if (!settings_.on_cpu() || settings_.compare) {
      std::printf("\n");
      print_rates(rates_, torch_ && torch_->ready());
    }
    if (!settings_.plot.empty())
      draw_rates(rates_, report_.machine.model + ", flash_attn in " + settings_.dtype_name() + ", TFLOP/s")
          .save_png(settings_.plot);
  }

 private:
  Timing time(const AttentionCell& c, Pass pass, int threads) {
    Program program = attention_program(c, pass, threads, settings_);
    if (settings_.on_cpu())
      return run_and_peak(program, settings_.dtype, threads, settings_, report_.machine);
    return {cold_->median(program), report_.machine.product_peak(settings_.dtype)};
  }

  Row row(const AttentionCell& c, const std::string& suffix, Pass pass, double seconds) const {
    return report_.row(c.name() + suffix, c.shape(), name_of(pass)).time(seconds);
  }

  void add_row(const AttentionCell& c, Pass pass, const Timing& t) {
    const double flops = c.flops(pass == Pass::backward);
    const AttentionKernels kernels = settings_.attention.kernels;
    Row ours = row(c, kernels == AttentionKernels::best ? "" : ", " + std::string(name_of(kernels)), pass,
                   t.seconds);
    ours.products(flops * 1e-9 / t.seconds, t.peak, report_.machine);
    ours.share_sgemm = ours.share / product_;
    report_.add(ours);
    AttentionRates rates{
        c.name(), c.shape(), pass, ours.share, {flops * 1e-12 / t.seconds, Row::none, Row::none}};
    if (torch_) {
      const auto [cudnn, flash] = torch_->time(c, name_of(pass), 1, settings_);
      std::size_t place = 1;
      for (const auto& [who, seconds] : {std::pair(", cuDNN", cudnn), {", FA2", flash}}) {
        rates.rates[place++] = flops * 1e-12 / seconds;
        if (!std::isnan(seconds))
          report_.add(row(c, who, pass, seconds).products(flops * 1e-9 / seconds, t.peak, report_.machine));
      }
    }
    rates_.push_back(rates);
  }

  Report& report_;
  const Settings& settings_;
  double product_ = Row::none;  // the GEMM's share of the peak, on the CPU
  std::optional<ColdRuns> cold_;
  std::optional<TorchAttention> torch_;
  std::vector<AttentionRates> rates_;
};

}  // namespace

void run_attention(Report& report) {
  AttentionBench bench(report);
  for (const Pass pass : {Pass::forward, Pass::backward}) bench.run(pass);
  bench.finish();
  if (!report.settings.attention.whole_suite) return;
  for (bool with_backward : {false, true})
    if (report.selects("flash_attn extra memory"))
      report_memory({.L = 32768, .T = 32768, .d = 64, .dv = 64}, with_backward, report);
}

}  // namespace tg::bench
