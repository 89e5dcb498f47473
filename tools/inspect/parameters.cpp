// The size of each layer of a model.
#include "tools/inspect/memory_views.h"

#include <algorithm>
#include <cstdio>

#include <tilegrad/core/report/graph_text.h>
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
    char line[160];
    std::snprintf(line, sizeof line, "  %15s  %15s  %7s\n", count.c_str(), bytes.c_str(), share.c_str());
    text += layer + std::string(width - layer.size(), ' ') + line;
  };
  row("layer", "numbers", "bytes", "share");
  for (const std::vector<LayerSize>& rows : {sizes, {all}})
    for (const LayerSize& s : rows) {
      char share[16];
      std::snprintf(
          share, sizeof share, "%.2f %%",
          100.0 * static_cast<double>(s.count) / static_cast<double>(std::max<std::int64_t>(all.count, 1)));
      row(s.layer, grouped(s.count), grouped(static_cast<std::int64_t>(s.bytes)), share);
    }
  return text;
}

}  // namespace tg
