// Views of memory: layer sizes, a plot of a program's memory plan, the key-value cache size per token, and
// how many sequences fit into a memory size.
#include <algorithm>
#include <cstdio>

#include <tilegrad/core/report/graph_text.h>
#include "tools/inspect/views.h"
#include "tools/train_report.h"

namespace tg {

std::vector<LayerSize> sizes_by_layer(const std::vector<Parameter>& parameters) {
  std::vector<LayerSize> sizes;
  for (const Parameter& p : parameters) {
    const std::string layer = layer_of(p.name().substr(0, p.name().rfind('.')));
    auto at = std::find_if(sizes.begin(), sizes.end(), [&](const LayerSize& s) { return s.layer == layer; });
    if (at == sizes.end()) at = sizes.insert(at, {layer});
    at->count += numel(p.shape());
    at->bytes += p.bytes();
  }
  return sizes;
}

std::string sizes_text(const std::vector<LayerSize>& sizes) {
  LayerSize all{"all"};
  std::size_t width = 5;
  for (const LayerSize& s : sizes) {
    all.count += s.count, all.bytes += s.bytes;
    width = std::max(width, s.layer.size());
  }
  std::string text;
  const auto row = [&](const std::string& layer, const std::string& count, const std::string& bytes,
                       const std::string& share) {
    text += layer + std::string(width - layer.size(), ' ') +
            formatted("  %15s  %15s  %7s\n", count.c_str(), bytes.c_str(), share.c_str());
  };
  row("layer", "numbers", "bytes", "share");
  for (const std::vector<LayerSize>& rows : {sizes, {all}})
    for (const LayerSize& s : rows)
      row(s.layer, grouped(s.count), grouped(static_cast<std::int64_t>(s.bytes)),
          formatted("%.2f %%", 100.0 * static_cast<double>(s.count) /
                                   static_cast<double>(std::max<std::int64_t>(all.count, 1))));
  return text;
}

FullestStep fullest_step(const Program& program) {
  std::vector<std::size_t> alive(program.steps().size() + 1);
  for (const ArenaBuffer& b : program.buffers())
    for (int s = b.first; s <= b.last; ++s) alive[static_cast<std::size_t>(s)] += b.bytes;
  const auto most = std::max_element(alive.begin(), alive.end());
  return {static_cast<int>(most - alive.begin()), *most};
}

plot::Plot plan_plot(const Program& program, const std::string& name) {
  constexpr double mib = 1 << 20;
  const MemoryReport m = program.memory();
  const auto steps = static_cast<double>(program.steps().size()), arena = static_cast<double>(m.arena);
  plot::Plot plot{.title = name + ": peak " + size_text(static_cast<double>(m.peak())) + ", including " +
                           size_text(arena) + " arena",
                  .x_label = "step",
                  .y_label = "offset in the arena (MiB)",
                  .width = 1800,
                  .height = 1000,
                  .legend_outside = true};
  const auto color_of = [](std::string_view part) {
    for (std::size_t i = 0; i < std::size(model_parts); ++i)
      if (model_parts[i].name == part) return plot::palette(i);
    return plot::Color{150, 154, 162};
  };
  for (const ArenaBuffer& b : program.buffers()) {
    const std::string& maker = program.steps()[static_cast<std::size_t>(b.first)].name;
    plot.boxes.push_back({static_cast<double>(b.first), static_cast<double>(b.offset) / mib,
                          std::min(b.last + 1.0, steps), static_cast<double>(b.offset + b.bytes) / mib,
                          color_of(part_of(maker))});
  }
  for (const ModelPart& part : model_parts)
    plot.series.push_back({.label = std::string(part.name), .color = color_of(part.name)});
  plot.series.push_back({.label = "loss, optimizer, other", .color = color_of("")});
  const FullestStep most = fullest_step(program);
  const double middle = most.step + 0.5;
  plot.series.push_back({.label = "arena: " + size_text(arena),
                         .x = {0, steps},
                         .y = {arena / mib, arena / mib},
                         .color = plot::Color{34, 38, 46}});
  plot.series.push_back({.label = "peak: " + size_text(static_cast<double>(most.bytes)) + " at step " +
                                  std::to_string(most.step),
                         .x = {middle, middle},
                         .y = {0, arena / mib},
                         .color = plot::Color{200, 30, 40}});
  return plot;
}

namespace {

// Splits "transformer.h.0.attn.k" at the last dot, into layer and kind.
std::pair<std::string, std::string> layer_and_kind(const std::string& tensor) {
  const std::size_t dot = std::min(tensor.rfind('.'), tensor.size());
  return {tensor.substr(0, dot), tensor.substr(std::min(dot + 1, tensor.size()))};
}

std::string right(const std::string& s, std::size_t width) {
  return std::string(width - std::min(width, s.size()), ' ') + s;
}

}  // namespace

std::string cache_text(const std::vector<CacheRow>& token) {
  std::vector<std::string> layers, kinds;
  const auto once = [](std::vector<std::string>& list, const std::string& s) {
    if (std::find(list.begin(), list.end(), s) == list.end()) list.push_back(s);
  };
  std::size_t width = 5;
  for (const CacheRow& r : token) {
    const auto [layer, kind] = layer_and_kind(r.tensor);
    once(layers, layer), once(kinds, kind);
    width = std::max(width, layer.size());
  }
  std::string text;
  const auto row = [&](const std::string& name, auto cell, const std::string& bytes) {
    text += name + std::string(width - name.size(), ' ');
    for (const std::string& kind : kinds) text += "  " + right(cell(kind), 8);
    text += "  " + right(bytes, 12) + "\n";
  };
  const auto total = [&](const std::string& layer, const std::string& kind) {  // "" selects all
    CacheRow sum;
    for (const CacheRow& r : token) {
      const auto [l, k] = layer_and_kind(r.tensor);
      if ((layer.empty() || l == layer) && (kind.empty() || k == kind))
        sum.numbers += r.numbers, sum.bytes += r.bytes;
    }
    return sum;
  };
  row(
      "layer", [](const std::string& kind) { return kind; }, "bytes");
  layers.push_back("");
  for (const std::string& layer : layers)
    row(
        layer.empty() ? "all" : layer,
        [&](const std::string& kind) { return grouped(total(layer, kind).numbers); },
        grouped(static_cast<std::int64_t>(total(layer, "").bytes)));
  return text;
}

std::vector<CacheFit> cache_fits(double bytes, std::int64_t bytes_of_token, std::int64_t context,
                                 const std::vector<std::int64_t>& pages,
                                 const std::vector<std::int64_t>& lengths) {
  const auto tokens = static_cast<std::int64_t>(bytes) / bytes_of_token;
  std::vector<CacheFit> fits{{0, tokens / context * context}};
  for (std::size_t i = 0; i < lengths.size(); ++i) fits[0].texts.push_back(tokens / context);
  for (const std::int64_t page : pages) {
    const std::int64_t n = std::max<std::int64_t>(0, tokens / page - 1);
    fits.push_back({page, n * page});
    for (const std::int64_t length : lengths) fits.back().texts.push_back(n / ((length + page - 1) / page));
  }
  return fits;
}

std::string fits_text(const std::vector<CacheFit>& fits, const std::vector<std::int64_t>& lengths) {
  constexpr std::size_t width = 12;
  std::string text = "                 " + right("tokens", width);
  for (const std::int64_t length : lengths) text += right("of " + grouped(length), width);
  text += "\n";
  for (const CacheFit& fit : fits) {
    const std::string name = fit.page == 0 ? "contiguous" : "pages of " + std::to_string(fit.page);
    text += "  " + name + std::string(15 - std::min<std::size_t>(15, name.size()), ' ') +
            right(grouped(fit.tokens), width);
    for (const std::int64_t n : fit.texts) text += right(grouped(n), width);
    text += "\n";
  }
  return text;
}

}  // namespace tg
