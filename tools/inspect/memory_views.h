// What inspect shows of memory: the size of each layer, a program's memory plan, and the key-value cache.
#pragma once

#include <string>
#include <vector>

#include <tilegrad/core/graph/parameter.h>
#include <tilegrad/core/run/program.h>
#include <tilegrad/io/plots/png_plot.h>
#include "tools/cache_memory.h"

namespace tg {

// The size of a layer of a model.
struct LayerSize {
  std::string layer;  // "transformer.h.0", "transformer.wte"
  std::int64_t count = 0;
  std::size_t bytes = 0;
};

// In the order in which the layers were created.
std::vector<LayerSize> sizes_by_layer(const std::vector<Parameter>& parameters);

// A row for each layer with numbers, bytes and share of all numbers, and one for all of them.
std::string sizes_text(const std::vector<LayerSize>& sizes);

// The step at which most bytes of the arena are alive, the first of several; 0 without buffers.
struct FullestStep {
  int step = 0;
  std::size_t bytes = 0;
};
FullestStep fullest_step(const Program& program);

// A program's memory plan as a picture: every buffer of the arena is a rectangle of its lifetime (x) and its
// addresses (y). x: steps, counted from 0, each from its number to the next; y: MiB from the start of the
// arena. Coloured by the part of the model (tools/model_parts.h) whose step writes the buffer first. `name`
// begins the title.
plot::Plot plan_plot(const Program& program, const std::string& name);

// What a token costs in a key-value cache: a row for each layer with the numbers in each of its tensors and
// all their bytes, and one for all layers.
std::string cache_text(const std::vector<CacheRow>& token);

// How many texts of some lengths a memory holds: each with room reserved for the whole context, or in pages
// [Stratos, PagedAttention].
struct CacheFit {
  std::int64_t page = 0;            // tokens; 0: contiguous, the context for each text
  std::int64_t tokens = 0;          // room for so many
  std::vector<std::int64_t> texts;  // of each of the lengths
};

// Contiguous, and in pages of each size. Of a pool of pages one is no text's.
std::vector<CacheFit> cache_fits(double bytes, std::int64_t bytes_of_token, std::int64_t context,
                                 const std::vector<std::int64_t>& pages,
                                 const std::vector<std::int64_t>& lengths);
std::string fits_text(const std::vector<CacheFit>& fits, const std::vector<std::int64_t>& lengths);

}  // namespace tg
