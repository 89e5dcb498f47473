// What a token costs in a key-value cache, and how many texts a memory holds.
#include "tools/inspect/memory_views.h"

#include <algorithm>
#include <cstdio>

#include "tools/train_report.h"

namespace tg {

namespace {

// "transformer.h.0.attn.k": the layer up to the last dot, the kind after it.
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
  const auto total = [&](const std::string& layer, const std::string& kind) {  // "": all
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
