// bench: measures the kernels, the executor and the compiler, relative to this machine's peak rates.
#include <cstdio>

#include <tilegrad/io/files/file.h>
#include "core/os/thread.h"
#include "tools/bench/options.h"
#include "tools/output_files.h"
#include "tools/run_as_rank.h"

namespace {

using namespace tg;
using namespace tg::bench;

constexpr Mode modes[] = {
    {"gemm", run_gemm, 3},   {"attention", run_attention, 4}, {"decode", run_decode, 4},
    {"ops", run_ops, 2},     {"overhead", run_overhead, 1},   {"train", run_train, 5},
    {"lora", run_lora, 7},   {"tokens", run_tokens, 1},       {"generate", run_generate, 1},
    {"serve", run_serve, 5}, {"load", run_load, 4},           {"ranks", run_ranks, 1}};

// `join` connects the ranks. It is called only in the mode ranks.
template <class Join>
int run(int argc, char** argv, const Join& join) {
  CommandLine line(modes);
  Settings& settings = line.settings;
  if (const auto code = line.args.parse(argc, argv)) return *code;
  if (line.has_ranks()) {
    const std::shared_ptr<parallel::Group> group = join();
    settings.ranks = {group, &group->communicator()};
    line.backend = own_gpu(line.backend, settings.ranks->size());
  }
  if (const std::string mistake = line.take(); !mistake.empty()) return line.args.fail(mistake);
  check_outputs("bench", {line.json, settings.plot}, line.overwrite, {settings.text, settings.serve.trace});
  if (!settings.train.rows.empty()) {
    draw_scaling(settings);
    return 0;
  }
  // Pins each thread to one core. Ranks are not pinned, because they would share a core.
  if (settings.on_cpu() && !settings.ranks) os::limit_processors(settings.threads);
  if (settings.attention.traffic) return run_attention_traffic(settings);
  if (!settings.attention.once.empty()) return run_attention_once(settings);
  const Machine machine = measure_machine(settings);
  Report report(machine, settings);
  if (!settings.train.model || settings.ranks) report.head();
  const Mode& mode = line.chosen();
  const std::vector<Sizes> shapes = settings.shapes;
  if (shapes.size() < 2 || settings.ranks) {
    mode.run(report);
  } else {
    for (const Sizes& shape : shapes) {
      settings.shapes = {shape};
      mode.run(report);
    }
  }
  if (report.empty()) {
    std::fprintf(stderr, "bench: no row of %s has '%s' in its name\n", mode.name, settings.filter.c_str());
    return 2;
  }
  if (!line.json.empty() && (!settings.ranks || settings.ranks->rank() == 0)) {
    const std::string text = report.json();
    const std::string_view piece = text;
    io::replace_file(line.json, std::span(&piece, 1), "bench");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_as_rank("bench", [&](const auto& join) { return run(argc, argv, join); });
}
