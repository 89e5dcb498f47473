// How many numbers attention reads from main memory, by the model of [Stratos, Efficient Attention §1.3].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tilegrad/io/plots/png_plot.h>

namespace tg {

// Attention of one head over T tokens with vectors of d numbers, on a device whose fast memory (a cache, or
// the shared memory of a GPU's block) holds M numbers. The model is for T > d and 4d ≤ M < Td.
struct ReadModel {
  std::int64_t T = 4096, d = 64, M = 49152;
  std::string mistake() const;  // which of these does not hold, "" if they all do

  // Reads of FlashAttention with chunks of Λ keys [Stratos, Efficient Attention §1.1]: K and V once, in the
  // outer loop, and Q and O once for each of ⌈T/Λ⌉ chunks, in the inner loop: 2Td + 2Td·⌈T/Λ⌉, which is O(Td
  // + T²d/Λ) [Stratos, Efficient Attention §1.3].
  double fused(std::int64_t chunk) const;
  // Of standard attention: the T × T matrix of probabilities, O(T²) [Stratos, Efficient Attention §1.3].
  double materialised() const;
  // The largest Λ for which a chunk's queries, keys, values and results fit: ⌊M/4d⌋ [Stratos, Efficient
  // Attention §1.3], T at most. More keys mean fewer reads, so it is the best.
  std::int64_t best_chunk() const;
};

struct ReadsRow {
  std::int64_t chunk;
  double reads;
  bool fits;
};
// Of chunks 8, 16, 32, … T and the best one, in ascending order.
std::vector<ReadsRow> reads_by_chunk(const ReadModel& model);

plot::Plot reads_plot(const ReadModel& model);
std::string reads_text(const ReadModel& model);  // a table

}  // namespace tg
