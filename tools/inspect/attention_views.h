// What inspect shows of attention: the maps of a model on a text, the memory that attention needs, and how
// many numbers it reads from main memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tilegrad/core/run/program.h>
#include <tilegrad/io/plots/heat_map.h>
#include <tilegrad/io/plots/png_plot.h>
#include <tilegrad/nn/models/language_model.h>
#include <tilegrad/ops/flash_attn.h>

namespace tg {

// Attention maps of a model on a text, as a picture: a row of heads for each layer. `tokens`: the text of
// each of the L tokens.
plot::HeatMaps attention_picture(const std::vector<nn::AttentionMap>& maps,
                                 const std::vector<std::string>& tokens, const std::string& title);

// The text of a token in a picture: a space as ·, a line break as \n, an invisible character as \x07.
std::string visible_token(const std::string& token);

// One call of attention, to compare the memory of flash_attn with that of attention that keeps its matrix in
// memory, as texts get longer: q [batch, heads, L, width], k the same with key_heads, v with key_heads and
// value_width.
struct AttentionCall {
  std::int64_t batch = 1, heads = 1, key_heads = 1, width = 32, value_width = 32;
  DType dtype = f32;
  bool causal = true;
  std::string text() const;  // "batch 12, 4 heads of 32, f32"
};

// The call of the first flash_attn of a program; Error if there is none.
AttentionCall attention_of(const Program& program);

// The peak, by the plan (MemoryReport::peak), of a program that computes attention over `length` tokens and
// the gradients of its q, k and v: all inputs, results and workspace. Bytes.
std::size_t attention_peak(const AttentionCall& call, std::int64_t length, bool fused,
                           Device device = Device::cpu(), int threads = 0);

struct AttentionPeaks {
  std::int64_t length;
  std::size_t fused, materialised;  // bytes
};
// For lengths from 256 to 65536, each twice the one before.
std::vector<AttentionPeaks> attention_peaks(const AttentionCall& call, Device device, int threads);

plot::Plot attention_memory_plot(const AttentionCall& call, const std::vector<AttentionPeaks>& peaks);
std::string attention_memory_text(const std::vector<AttentionPeaks>& peaks);  // a table

// How many numbers attention reads from main memory, by the model of [Stratos, Efficient Attention §1.3]:
// attention of one head over T tokens with vectors of d numbers, on a device whose fast memory (a cache, or
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
