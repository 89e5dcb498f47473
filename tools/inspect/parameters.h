// The size of each layer of a model.
#pragma once

#include <string>
#include <vector>

#include <tilegrad/core/graph/parameter.h>

namespace tg {

struct LayerSize {
  std::string layer;  // "transformer.h.0", "transformer.wte"
  std::int64_t count = 0;
  std::size_t bytes = 0;
};

// In the order in which the layers were created.
std::vector<LayerSize> sizes_by_layer(const std::vector<Parameter>& parameters);

// A row for each layer with numbers, bytes and share of all numbers, and one for all of them.
std::string sizes_text(const std::vector<LayerSize>& sizes);

}  // namespace tg
