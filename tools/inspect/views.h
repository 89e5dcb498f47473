// What inspect shows, as text and as pictures: of attention, the maps of a model on a text, the memory that
// it needs, and how many numbers it reads from main memory; of memory, the size of each layer, a program's
// memory plan, and the key-value cache; and the losses of several training runs together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tilegrad/core/graph/parameter.h>
#include <tilegrad/core/run/program.h>
#include <tilegrad/io/plots/heat_map.h>
#include <tilegrad/io/plots/png_plot.h>
#include <tilegrad/nn/models/language_model.h>
#include <tilegrad/ops/flash_attn.h>
#include <tilegrad/train/metrics.h>
#include "tools/cache_memory.h"

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
// arena. Coloured by the part of the model (model_parts of tools/train_report.h) whose step writes the buffer
// first. `name` begins the title.
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

struct NamedRun {
  std::string name;
  std::vector<train::MetricsRow> rows;  // not empty
};

// The metrics.jsonl that train wrote to the directory, whose name becomes the run's name. Throws Error if
// there is none or it has no step, FormatError for a line that is not a row.
NamedRun read_run(const std::string& directory);

// Each run in two colours: the training loss faint under its smoothed mean; validation with markers.
plot::Plot curves_plot(const std::vector<NamedRun>& runs);

// A line for each run: steps, the smoothed training loss at the end, the best validation loss.
std::string runs_text(const std::vector<NamedRun>& runs);

}  // namespace tg
