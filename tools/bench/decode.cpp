// Attention of few queries with many keys, as in decoding: the rate at which keys and values are read, as a
// share of the rate at which the same threads just read memory; and its multiply-adds, as a share of theirs.
// The nearer of the two is what bounds it.
#include "tools/bench/attention_programs.h"
#include "tools/bench/modes.h"
#include "tools/bench/reading.h"

namespace tg::bench {

namespace {

// Of the keys and values that some query sees.
double bytes_of(const AttentionCell& c, DType dtype) {
  const std::int64_t row = c.v_in_k ? c.d : c.d + c.dv,
                     keys = keys_seen(c, c.L - 1).to - keys_seen(c, 0).from;
  return static_cast<double>(c.B * c.Hk * keys * row) * static_cast<double>(size_of(dtype));
}

// Rates of the machine change from moment to moment, so all three are measured in turns: the best of each.
struct DecodeRates {
  double seconds = std::numeric_limits<double>::infinity(), reading = 0, peak = 0;
  DecodeRates(Program& program, Reading& memory, const Settings& settings) {
    constexpr int turns = 10;
    best_seconds(settings.seconds, [&] {
      reading = std::max(reading, memory.gbytes());
      peak = std::max(peak, peak_now(settings.dtype == f64 ? f64 : f32, settings.threads));
      seconds = std::min(seconds, best_seconds(settings.seconds / turns, [&] { program.run(); }));
    });
  }
};

}  // namespace

void run_decode(const Settings& settings, const Machine&, Report& report) {
  Reading memory(settings);
  for (const AttentionCell& c : settings.attention.cells) {
    const std::string name = c.name() + " decode";
    if (!report.selects(name)) continue;
    Program program = forward_program(c, settings.threads, settings);
    const DecodeRates best(program, memory, settings);
    const auto add = [&](const char* suffix, double rate, const char* unit, double of, const char* what) {
      report.add({.name = name + suffix,
                  .shape = c.shape(),
                  .dtype = settings.dtype_name(),
                  .pass = "forward",
                  .threads = settings.threads,
                  .ms = best.seconds * 1e3,
                  .rate = rate,
                  .unit = unit,
                  .share = rate / of,
                  .of = what});
    };
    add("", bytes_of(c, settings.dtype) * 1e-9 / best.seconds, "GB/s", best.reading, "reading");
    add(", products", c.flops(false) * 1e-9 / best.seconds, "GFLOP/s", best.peak, "multiply-add");
  }
}

}  // namespace tg::bench
