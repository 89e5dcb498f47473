// bench ranks: ring_attention over a sequence that the ranks divide, as a share of what flash_attn gets done
// where each rank has the whole sequence to itself, at the same time as the others.
#include <tilegrad/ops/ring_attention.h>
#include "tools/bench/attention_programs.h"
#include "tools/bench/modes.h"
#include "tools/bench/rank_times.h"

namespace tg::bench {

namespace {

enum class Pass { forward, backward, both };

const char* name_of(Pass pass) {
  return pass == Pass::forward ? "forward" : pass == Pass::backward ? "backward" : "both";
}

// "ring_attention causal window 4096", …
std::string ring_name(const AttentionCell& c) {
  return "ring_attention" + c.name().substr(std::string("flash_attn").size());
}

Program program_of(const AttentionCell& c, Pass pass, int ranks, const Settings& settings) {
  if (pass == Pass::forward) return forward_program(c, 1, settings, ranks);
  if (pass == Pass::backward) return backward_program(c, 1, settings, true, ranks);
  return both_program(c, 1, settings, ranks);
}

double flops_of(const AttentionCell& c, Pass pass) {
  return (pass != Pass::backward ? c.flops(false) : 0) + (pass != Pass::forward ? c.flops(true) : 0);
}

// A causal sequence, the same with a quarter of the key heads, and with a window of a thirty-second.
std::vector<AttentionCell> default_cells(int ranks, const Settings& settings) {
  const bool on_cpu = settings.device.kind == Device::cpu_kind, quick = settings.seconds == 0;
  const std::int64_t large = size_of(settings.dtype) == 2 ? 131072 : 32768,
                     whole = on_cpu ? (quick ? 256 : 1024) : (quick ? 16384 : large),
                     length = whole - whole % (2 * ranks), d = on_cpu ? 64 : 128;
  AttentionCell c{.H = 8, .Hk = 8, .L = length, .T = length, .d = d, .dv = d, .causal = true};
  AttentionCell grouped = c, window = c;
  grouped.Hk = 2;
  window.window = whole / 32;
  return {c, grouped, window};
}

void measure(const AttentionCell& c, Pass pass, const Settings& settings, Report& report) {
  const int n = settings.ranks->size();
  const RankRuns counts = settings.seconds == 0 ? RankRuns{1, 3, 1} : RankRuns{2, 5, 4};
  const double flops = flops_of(c, pass);
  double alone = 0;
  for (const bool together : {false, true}) {
    Program program = program_of(c, pass, together ? n : 1, settings);
    const double seconds = seconds_of_step(*settings.ranks, counts, [&] {
      program.run();
      return program.fetch_later({});
    });
    const double rate = rate_of_all(*settings.ranks, flops, seconds, together);
    if (!together) alone = rate;
    Row row{together ? ring_name(c) : c.name(), c.shape(), settings.dtype_name(), name_of(pass), 1};
    row.ms = seconds * 1e3;
    row.rate = rate * 1e-12, row.unit = "TFLOP/s";
    if (together) row.share = rate / alone, row.of = all_alone;
    report.add(row);
  }
}

}  // namespace

void report_rank_attention(const Settings& settings, Report& report) {
  const int n = settings.ranks->size();
  for (const AttentionCell& c :
       settings.attention.cells.empty() ? default_cells(n, settings) : settings.attention.cells) {
    if (!report.selects(ring_name(c))) continue;
    ring_positions(0, n, c.L);  // an error unless they can divide it
    for (const Pass pass : {Pass::forward, Pass::backward, Pass::both}) measure(c, pass, settings, report);
  }
}

}  // namespace tg::bench
