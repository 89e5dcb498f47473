// flash_attn forward and backward: the rate of each cell, as a share of the machine's multiply-add rate and
// of this library's own matrix product, beside PyTorch's if it is asked for.
#include <cmath>
#include <optional>

#include <tilegrad/autograd/gradients.h>
#include <tilegrad/ops/ops.h>
#include "tools/bench/attention_programs.h"
#include "tools/bench/attention_rates.h"
#include "tools/bench/cold_runs.h"
#include "tools/bench/modes.h"
#include "tools/bench/other_libraries.h"

namespace tg::bench {

namespace {

// Bytes besides inputs and results, by the plan.
void memory(const AttentionCell& c, bool with_backward, const Settings& settings, Report& report) {
  RecordedAttention r(c, settings);
  std::vector<Tensor> outputs{r.out.o, r.out.lse};
  if (with_backward) {
    const Tensor z = r.g.input("z", r.out.o.shape(), settings.dtype);
    for (const Tensor& t : gradients(r.out.o, {r.q, r.k, r.v}, z)) outputs.push_back(t);
  }
  const MemoryReport m = compile(r.g, outputs, options_of(settings, settings.threads)).memory();
  double extra = static_cast<double>(m.peak() - m.inputs);
  for (const Tensor& t : outputs)
    extra -= static_cast<double>(t.numel()) * static_cast<double>(size_of(t.dtype()));
  report.add({.name = c.name() + " extra memory",
              .shape = c.shape(),
              .dtype = settings.dtype_name(),
              .pass = with_backward ? "both" : "forward",
              .threads = settings.threads,
              .rate = extra / (1 << 20),
              .unit = "MiB"});
}

class AttentionBench {
 public:
  AttentionBench(const Settings& settings, const Machine& machine, Report& report)
      : settings_(settings), machine_(machine), report_(report) {
    if (on_cpu())
      product_ = sgemm(settings, settings.threads, machine, report);
    else
      cold_.emplace(settings);
    if (settings.compare) {
      torch_.emplace(settings.device);
      std::printf("%s%s\n", torch_->ready() ? "" : "no PyTorch to compare with: ", torch_->about().c_str());
    }
  }

  void run(bool backward) {
    const AttentionCell* full = nullptr;  // the cell before, if it has no mask
    double full_seconds = 0;
    for (const AttentionCell& c : settings_.attention.cells) {
      if (!report_.selects(c.name())) continue;
      const Timing t = time(c, backward, settings_.threads);
      add_row(c, backward, t);
      if (full && c.causal && c.window < 0 && full->shape() == c.shape())
        add_ratio(c, " / full", backward, t, t.seconds / full_seconds, "×");
      full = c.causal || c.window >= 0 ? nullptr : &c, full_seconds = t.seconds;
      if (settings_.threads == 1 || !full) continue;
      const double times = time(c, backward, 1).seconds / t.seconds;
      add_ratio(c, ", all / one", backward, t, times, "×", times / settings_.threads);
    }
  }

  // The table of all rates, and the picture of it.
  void finish() const {
    const bool compares = torch_ && torch_->ready();
    if (rates_.empty()) return;
    if (!on_cpu() || settings_.compare) std::printf("\n%s", rates_table(rates_, compares).c_str());
    if (!settings_.attention.plot.empty())
      draw_rates(rates_, machine_.model + ", flash_attn in " + settings_.dtype_name() + ", TFLOP/s")
          .save_png(settings_.attention.plot);
  }

 private:
  bool on_cpu() const { return settings_.device.kind == Device::cpu_kind; }

  Timing time(const AttentionCell& c, bool backward, int threads) {
    Program program =
        backward ? backward_program(c, threads, settings_) : forward_program(c, threads, settings_);
    if (on_cpu()) return run_and_peak(program, settings_.dtype, threads, settings_, machine_);
    return {cold_->median(program), product_peak(machine_, settings_.dtype)};
  }

  Row row_of(const AttentionCell& c, const std::string& suffix, bool backward, double seconds) const {
    return {c.name() + suffix, c.shape(),    settings_.dtype_name(), backward ? "backward" : "forward",
            settings_.threads, seconds * 1e3};
  }

  void add_row(const AttentionCell& c, bool backward, const Timing& t) {
    const double flops = c.flops(backward);
    const AttentionKernels kernels = settings_.attention.kernels;
    Row row = row_of(c, kernels == AttentionKernels::best ? "" : ", " + std::string(name_of(kernels)),
                     backward, t.seconds);
    set_rate(row, flops * 1e-9 / t.seconds, t.peak, machine_);
    row.share_sgemm = row.share / product_;
    report_.add(row);
    AttentionRates rates{c.name(), c.shape(), backward, flops * 1e-12 / t.seconds, row.share};
    if (torch_ && torch_->ready()) {
      const TorchProcess::Seconds theirs = torch_->time(c, backward, settings_);
      rates.cudnn = add_comparator(c, ", cuDNN", backward, theirs.cudnn, t.peak);
      rates.flash = add_comparator(c, ", FA2", backward, theirs.flash, t.peak);
    }
    rates_.push_back(rates);
  }

  // Its TFLOP/s; NaN, and no row, if it was not measured.
  double add_comparator(const AttentionCell& c, const char* who, bool backward, double seconds, double peak) {
    if (std::isnan(seconds)) return Row::none;
    Row row = row_of(c, who, backward, seconds);
    set_rate(row, c.flops(backward) * 1e-9 / seconds, peak, machine_);
    report_.add(row);
    return c.flops(backward) * 1e-12 / seconds;
  }

  void add_ratio(const AttentionCell& c, const char* suffix, bool backward, const Timing& t, double ratio,
                 const char* unit, double share = Row::none) {
    Row row = row_of(c, suffix, backward, t.seconds);
    row.rate = ratio, row.unit = unit, row.share = share;
    if (!std::isnan(share)) row.of = "threads";
    report_.add(row);
  }

  const Settings& settings_;
  const Machine& machine_;
  Report& report_;
  double product_ = Row::none;  // the share of the peak that a matrix product reaches, on the CPU
  std::optional<ColdRuns> cold_;
  std::optional<TorchProcess> torch_;
  std::vector<AttentionRates> rates_;
};

}  // namespace

void run_attention(const Settings& settings, const Machine& machine, Report& report) {
  AttentionBench bench(settings, machine, report);
  for (bool backward : {false, true}) bench.run(backward);
  bench.finish();
  if (!settings.attention.whole_suite) return;
  for (bool with_backward : {false, true})
    if (report.selects("flash_attn extra memory"))
      memory({.L = 32768, .T = 32768, .d = 64, .dv = 64}, with_backward, settings, report);
}

}  // namespace tg::bench
