// What a token costs in a key-value cache, and how many texts a memory holds: each with room reserved for the
// whole context, or in pages [Stratos, PagedAttention].
#pragma once

#include "tools/cache_memory.h"

namespace tg {

// A row for each layer with the numbers in each of its tensors and all their bytes, and one for all layers.
std::string cache_text(const std::vector<CacheRow>& token);

// How many texts of some lengths fit.
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
