// The memory that attention needs as texts get longer.
#include "tools/inspect/attention_views.h"

#include <tilegrad/autograd/gradients.h>
#include <tilegrad/core/compile/compile.h>
#include <tilegrad/ops/ops.h>
#include "tools/train_report.h"

namespace tg {

std::string AttentionCall::text() const {
  std::string s =
      "batch " + std::to_string(batch) + ", " + std::to_string(heads) + " heads of " + std::to_string(width);
  if (value_width != width) s += " and " + std::to_string(value_width);
  if (key_heads != heads) s += ", " + std::to_string(key_heads) + " key heads";
  return s + ", " + std::string(name_of(dtype));
}

AttentionCall attention_of(const Program& program) {
  for (const Step& s : program.steps()) {
    const AttentionAttrs* attrs = tg::attention_of(*s.op, s.attrs);
    if (!attrs) continue;
    const Shape &q = s.in[0].layout.shape, &v = s.in[2].layout.shape;
    return {q[0], q[1], v[1], q[3], v[3], s.in[0].dtype, attrs->causal};
  }
  throw Error("[inspect] the program has no attention");
}

std::size_t attention_peak(const AttentionCall& call, std::int64_t length, bool fused, Device device,
                           int threads) {
  Graph graph;
  const auto input = [&](const char* name, std::int64_t heads, std::int64_t width) {
    return graph.input(name, {call.batch, heads, length, width}, call.dtype);
  };
  const Tensor q = input("q", call.heads, call.width), k = input("k", call.key_heads, call.width),
               v = input("v", call.key_heads, call.value_width), z = input("z", call.heads, call.value_width);
  const AttentionOptions options{.causal = call.causal};
  const Tensor o = (fused ? flash_attn(q, k, v, options) : standard_attn(q, k, v, options)).o;
  std::vector<Tensor> results = gradients(o, {q, k, v}, z);
  results.push_back(o);
  return compile(graph, results, {.device = device, .threads = threads, .plan_only = true}).memory().peak();
}

std::vector<AttentionPeaks> attention_peaks(const AttentionCall& call, Device device, int threads) {
  std::vector<AttentionPeaks> peaks;
  for (std::int64_t length = 256; length <= 65536; length *= 2)
    peaks.push_back({length, attention_peak(call, length, true, device, threads),
                     attention_peak(call, length, false, device, threads)});
  return peaks;
}

plot::Plot attention_memory_plot(const AttentionCall& call, const std::vector<AttentionPeaks>& peaks) {
  plot::Series fused{.label = "flash_attn", .markers = true},
      materialised{.label = "matrix in memory", .markers = true};
  for (const AttentionPeaks& p : peaks) {
    for (plot::Series* s : {&fused, &materialised}) s->x.push_back(static_cast<double>(p.length));
    fused.y.push_back(static_cast<double>(p.fused) / (1 << 20));
    materialised.y.push_back(static_cast<double>(p.materialised) / (1 << 20));
  }
  return {.title = "attention, forward and backward: " + call.text(),
          .x_label = "length (tokens)",
          .y_label = "peak memory (MiB)",
          .log_x = true,
          .log_y = true,
          .series = {materialised, fused}};
}

std::string attention_memory_text(const std::vector<AttentionPeaks>& peaks) {
  std::string text = "  length     flash_attn   matrix in memory   times\n";
  for (const AttentionPeaks& p : peaks) {
    char line[96];
    std::snprintf(line, sizeof line, "%8s   %12s   %16s   %5.1f\n", grouped(p.length).c_str(),
                  size_text(static_cast<double>(p.fused)).c_str(),
                  size_text(static_cast<double>(p.materialised)).c_str(),
                  static_cast<double>(p.materialised) / static_cast<double>(p.fused));
    text += line;
  }
  return text;
}

}  // namespace tg
