// Plots three properties of attention: its maps, its memory as sequences get longer, and the number of
// elements that it reads from main memory.
#include <algorithm>
#include <cstdio>

#include <tilegrad/autograd/gradients.h>
#include <tilegrad/core/compile/compile.h>
#include <tilegrad/ops/ops.h>
#include "tools/inspect/views.h"
#include "tools/train_report.h"

namespace tg {

std::string visible_token(const std::string& token) {
  std::string s;
  for (const char c : token) {
    if (c == ' ') {
      s += "·";
    } else if (c == '\n') {
      s += "\\n";
    } else if (static_cast<unsigned char>(c) < 32 || c == 127) {
      s += formatted("\\x%02x", static_cast<unsigned>(c));
    } else {
      s += c;
    }
  }
  return s;
}

plot::HeatMaps attention_picture(const std::vector<nn::AttentionMap>& maps,
                                 const std::vector<std::string>& tokens, const std::string& title) {
  plot::HeatMaps h{.title = title,
                   .x_label = "key token",
                   .y_label = "query token",
                   .scale = "attention weight",
                   .rows = std::ssize(tokens),
                   .columns = std::ssize(tokens)};
  for (const std::string& token : tokens) h.row_names.push_back(visible_token(token));
  h.column_names = h.row_names;
  for (std::size_t layer = 0; layer < maps.size(); ++layer) {
    const std::vector<float> all = maps[layer].weights.values<float>();
    h.across = maps[layer].weights.shape()[0];
    const std::size_t size = tokens.size() * tokens.size();
    for (std::size_t head = 0; head * size < all.size(); ++head)
      h.maps.push_back({"layer " + std::to_string(layer) + ", head " + std::to_string(head),
                        {all.begin() + static_cast<std::ptrdiff_t>(head * size),
                         all.begin() + static_cast<std::ptrdiff_t>((head + 1) * size)}});
  }
  return h;
}

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
      materialised{.label = "score matrix in memory", .markers = true};
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
    text += formatted("%8s   %12s   %16s   %5.1f\n", grouped(p.length).c_str(),
                      size_text(static_cast<double>(p.fused)).c_str(),
                      size_text(static_cast<double>(p.materialised)).c_str(),
                      static_cast<double>(p.materialised) / static_cast<double>(p.fused));
  }
  return text;
}

std::string ReadModel::mistake() const {
  const std::string of = " for " + std::to_string(T) + " tokens and heads of " + std::to_string(d) + ": ";
  if (T <= d) return of + "there must be more tokens than the head's width";
  if (M < 4 * d)
    return of + "fast memory of " + std::to_string(M) +
           " numbers does not hold one query, key, value and result";
  if (M >= T * d)
    return of + "fast memory of " + std::to_string(M) +
           " numbers holds all of a head's keys; it must be smaller";
  return "";
}

double ReadModel::fused(std::int64_t chunk) const {
  const double rows = 2 * static_cast<double>(T) * static_cast<double>(d);
  return rows + rows * static_cast<double>((T + chunk - 1) / chunk);
}

double ReadModel::materialised() const {
  return static_cast<double>(T) * static_cast<double>(T);
}

std::int64_t ReadModel::best_chunk() const {
  return std::min(M / (4 * d), T);
}

std::vector<ReadsRow> reads_by_chunk(const ReadModel& model) {
  const std::int64_t best = model.best_chunk();
  std::vector<std::int64_t> chunks{best, model.T};
  for (std::int64_t chunk = 8; chunk < model.T; chunk *= 2) chunks.push_back(chunk);
  std::sort(chunks.begin(), chunks.end());
  chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
  std::vector<ReadsRow> rows;
  for (const std::int64_t chunk : chunks) rows.push_back({chunk, model.fused(chunk), chunk <= best});
  return rows;
}

plot::Plot reads_plot(const ReadModel& model) {
  const std::int64_t best = model.best_chunk();
  plot::Series fits{.label = "FlashAttention, tiles that fit", .markers = true, .color = plot::palette(0)},
      too_large{.label = "FlashAttention, tiles too large", .faint = true, .color = plot::palette(0)},
      optimum{.label = "optimum: tile of " + std::to_string(best) + ", " +
                       grouped(static_cast<std::int64_t>(model.fused(best))) + " reads",
              .x = {static_cast<double>(best)},
              .y = {model.fused(best)},
              .markers = true,
              .color = plot::palette(1)},
      standard{.label = "standard attention: " + grouped(static_cast<std::int64_t>(model.materialised())) +
                        " reads",
               .color = plot::palette(2)};
  for (const ReadsRow& r : reads_by_chunk(model)) {
    const auto chunk = static_cast<double>(r.chunk);
    if (r.fits) fits.x.push_back(chunk), fits.y.push_back(r.reads);
    if (!r.fits || r.chunk == best) too_large.x.push_back(chunk), too_large.y.push_back(r.reads);
    standard.x.push_back(chunk), standard.y.push_back(model.materialised());
  }
  return {.title = "elements read by attention from memory: T = " + grouped(model.T) +
                   ", d = " + std::to_string(model.d) + ", M = " + grouped(model.M),
          .x_label = "keys in a tile",
          .y_label = "elements read",
          .log_x = true,
          .log_y = true,
          .series = {too_large, fits, standard, optimum}};
}

std::string reads_text(const ReadModel& model) {
  std::string text = "    tile     elements read   of T²\n";
  for (const ReadsRow& r : reads_by_chunk(model)) {
    text += formatted("%8s  %15s  %7.3f", grouped(r.chunk).c_str(),
                      grouped(static_cast<std::int64_t>(r.reads)).c_str(), r.reads / model.materialised());
    text += r.chunk == model.best_chunk() ? "  optimum\n" : r.fits ? "\n" : "  too large\n";
  }
  return text;
}

}  // namespace tg
