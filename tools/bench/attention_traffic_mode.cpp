// `bench attention --traffic`: compares the memory traffic by the model with the profiler's counters.
#ifdef TILEGRAD_CUDA
#include <cuda_profiler_api.h>
#endif

#include "core/os/system.h"
#include "tools/bench/attention_programs.h"
#include "tools/bench/attention_traffic.h"
#include "tools/bench/report.h"

namespace tg::bench {

namespace {

std::string megabytes(const Bytes& b) {
  char s[64];
  std::snprintf(s, sizeof s, "%.1f + %.1f", b.read * 1e-6, b.written * 1e-6);
  return s;
}

std::string megabytes(const std::optional<Bytes>& counters) {
  return counters ? megabytes(*counters) : "not measured";
}

void print_pass(const char* pass, const char* way, const std::string& tile, const Bytes& model,
                const std::string& counters) {
  std::printf("  %-9s %-13s %s %24s %24s\n", pass, way, column(tile, 18).c_str(), megabytes(model).c_str(),
              counters.c_str());
}

void print_cell(const AttentionCell& c, const Settings& settings, bool counts) {
  const auto size = static_cast<std::int64_t>(size_of(settings.dtype));
  const std::string gpu = settings.on_cpu() ? "" : backend(settings.device).name();
  std::printf("%s %s %s\n", c.name().c_str(), c.shape().c_str(), settings.dtype_name().c_str());
  using Counted = std::optional<Bytes>;
  const auto run = [&](const char* once) { return counts ? counted(c, once, settings) : Counted(); };
  Counted whole[2] = {run(once_materialised)};  // of the forward pass, and of both passes
  if (const Counted both = whole[0] ? run(once_materialised_both) : Counted())
    whole[1] = {both->read - whole[0]->read, both->written - whole[0]->written};
  const Counted tiled[2] = {run(once_forward), run(once_backward)};
  for (bool backward : {false, true}) {
    const char* pass = backward ? "backward" : "forward";
    const Tile tile = tile_of(c, backward, size, gpu);
    const std::string tiles = std::to_string(tile.queries) + "×" + std::to_string(tile.keys) + ", " +
                              std::to_string(tile.on_chip(c, backward, size) / 1024) + " KiB";
    print_pass(pass, "materialised", "", materialised(c, backward, size), megabytes(whole[backward]));
    print_pass(pass, "fused", tiles, fused(c, backward, size, tile), megabytes(tiled[backward]));
    print_pass(pass, "least", "", least(c, backward, size), "");
  }
  std::fflush(stdout);
}

// Calls f between cudaProfilerStart and cudaProfilerStop, so that `ncu --profile-from-start off` profiles
// only f. These calls have no effect without a profiler. Compiling a program also runs kernels, for example
// the candidates of cuBLASLt for each GEMM. They are not profiled.
template <class F>
void profiled(F&& f) {
#ifdef TILEGRAD_CUDA
  cudaProfilerStart();
  f();
  cudaProfilerStop();
#else
  f();
#endif
}

}  // namespace

int run_attention_traffic(const Settings& settings) {
  const bool counts = !settings.on_cpu() && os::has_program("ncu");
  std::printf(
      "Megabytes read + written. fused: loads and stores of thread blocks, partly served by caches;\n"
      "least: each operand once. Tiles are queries×keys, with the on-chip memory that they "
      "need.%s\n\n",
      counts ? "" : " Counters need a GPU and ncu on the PATH.");
  std::printf("  %-9s %-13s %-18s %24s %24s\n", "pass", "way", "tile", "model", "counters");
  bool any = false;
  for (const AttentionCell& c : settings.attention.cells) {
    if (!settings.selects(c.name())) continue;
    print_cell(c, settings, counts);
    any = true;
  }
  if (!any) std::fprintf(stderr, "bench: no cell has '%s' in its name\n", settings.filter.c_str());
  return any ? 0 : 2;
}

int run_attention_once(const Settings& settings) {
  const std::string& once = settings.attention.once;
  for (const AttentionCell& c : settings.attention.cells) {
    Program program = once == once_forward ? attention_program(c, Pass::forward, settings.threads, settings)
                      : once == once_backward ? backward_program(c, settings.threads, settings, false, 1)
                                              : materialised_program(c, once != once_materialised, settings);
    profiled([&] {
      program.run();
      program.fetch_later({}).wait();
    });
  }
  return 0;
}

}  // namespace tg::bench
