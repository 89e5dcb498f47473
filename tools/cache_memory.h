// Memory sizes of key-value caches: parsing --cache-memory, and the bytes that a model needs per token.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/nn/layers/autocast.h>
#include <tilegrad/nn/layers/kv_cache.h>
#include <tilegrad/nn/models/language_model.h>
#include <tilegrad/nn/models/model.h>
#include "tools/memory_size.h"
#include "tools/train_report.h"

namespace tg {

// A parsed value, such as "64MiB", "1.5GiB", "4096" (bytes) or "16384tokens".
struct CacheMemory {
  double count = 0;
  bool tokens = false;

  double bytes(std::int64_t bytes_of_token) const {
    return tokens ? count * static_cast<double>(bytes_of_token) : count;
  }
};

// Parses `text` into `to`. Returns an error message, or "" if the text is valid.
inline std::string parse_cache_memory(std::string_view text, CacheMemory& to) {
  const auto parts = number_with_unit(text);
  const bool tokens = parts && parts->second == "tokens" && parts->first < 0x1p62;
  if (const auto n = tokens ? std::optional(parts->first) : bytes_named(text)) {
    to = {std::floor(*n), tokens};
    return "";
  }
  return "--cache-memory got '" + std::string(text) + "', expected a size like 64MiB, 1.5GiB or 16384tokens";
}

// The cache entries of one token in one tensor of a model's cache.
struct CacheRow {
  std::string tensor;  // "transformer.h.0.attn.k"
  std::int64_t numbers = 0;
  std::size_t bytes = 0;
};

// The entries of one token in all tensors, layer by layer.
inline std::vector<CacheRow> cache_of_token(const nn::LanguageModel& model, nn::Precision precision,
                                            std::optional<DType> dtype = {}) {
  Graph graph;
  nn::KvCache token(1, 1, model.device(), dtype);
  nn::CacheCall call(graph, token, 1);
  const nn::Autocast autocast(graph, precision);
  model.features_of(graph.input("tokens", {1, 1}, i32), {.cache = &call});
  std::vector<CacheRow> rows;
  for (const auto& [name, tensor] : token.tensors())
    rows.push_back({name, numel(tensor.shape()), tensor.bytes()});
  // Sorts by layer number, so that layer 10 follows layer 9.
  std::stable_sort(rows.begin(), rows.end(),
                   [](const CacheRow& a, const CacheRow& b) { return a.tensor.size() < b.tensor.size(); });
  return rows;
}

inline std::int64_t bytes_of(const std::vector<CacheRow>& token) {
  std::size_t bytes = 0;
  for (const CacheRow& r : token) bytes += r.bytes;
  return static_cast<std::int64_t>(bytes);
}

// Throws OutOfMemory if a key-value cache for the model's full context does not fit on its device. If the
// model has no table of positions, only memory limits the context.
inline void check_cache_memory(const nn::Model& model, std::int64_t batch, nn::Precision precision,
                               std::optional<DType> dtype = {}) {
  const std::int64_t token = bytes_of(cache_of_token(model, precision, dtype));
  check_memory(nn::LanguageModel(model).device(),
               static_cast<double>(token) * static_cast<double>(batch) * static_cast<double>(model.context()),
               "a key-value cache for " + grouped(batch) + " × " + grouped(model.context()) + " tokens");
}

}  // namespace tg
